"""Stages: their order and limits, their processes, and the channel by which each tells what it finds, row by row.

A stage is forked from a process that has loaded torch and never touched the GPU. So an error on the device, which ends
all work of its process there, ends one stage. One that takes too long is killed, with all that it has started.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from common.errors import BadInputError

Row = dict[str, Any]
Finding = dict[str, Any]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch"])


@dataclass(frozen=True)
class Setting:
    """Device (``cpu``, ``cuda``, ``cuda:N``) and sizes. Muon events are of the simulator's `bench` preset."""

    device: str
    is_cuda: bool
    known: frozenset[tuple[str, str, int]] = frozenset()  # rows of the step's table that an earlier page has
    events: tuple[int, ...] = (128_000, 8_192, 32_768)
    run_events: tuple[int, ...] = (128_000, 8_192)
    directions: int = 64  # as in configs/direction.toml
    network: tuple[tuple[str, int], ...] = ()
    microbatch_particles: int = 65_536  # the default of `stream.max_particles`
    repeats: int = 5
    matrix: int = 8192
    copy_mib: int = 256
    ragged_steps: int = 5000
    files_events: int = 1_000_000
    run_s: float = 8.0  # of a run from files, once it is warm
    primaries: int = 100_000

    @property
    def default_precision(self) -> str:
        """What `trainer.precision = "auto"` is."""
        return "tf32" if self.is_cuda else "float32"


SMALL = {"hidden": 16}
QUICK: dict[str, Any] = {
    **{"events": (256, 64), "run_events": (64,), "directions": 8, "network": tuple(SMALL.items()), "run_s": 1.0},
    **{"microbatch_particles": 600, "repeats": 1, "matrix": 128, "copy_mib": 1, "ragged_steps": 100},
    **{"files_events": 4000, "primaries": 200},
}
"""Tiny sizes: does it work?"""


class Stage(NamedTuple):
    """One stage, in a process of its own."""

    name: str
    limit_s: float
    function: str  # `module:function` in this package, called with Setting and Channel
    only_cuda: bool = False


class Channel(NamedTuple):
    """Sending end, in the process of a stage."""

    pipe: Connection
    deadline_s: float  # on the monotonic clock, which all processes of a machine share

    def send(self, kind: str, content: Any) -> None:
        """Send an item of a list of the finding, or a line of progress ("say")."""
        self.pipe.send((kind, content))

    def row(self, table: str, **values: Any) -> None:
        """Send a row of one of the page's tables."""
        self.send("rows", {"table": table, **values})

    def attempt(self, what: str, work: Callable[[], object]) -> bool:
        """Do ``work``, and return True; an error is named, and the stage goes on."""
        self.send("say", what)
        try:
            work()
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it raises, the others are measured
            # No compiler, say, is the machine's; and a smaller card may lack the memory.
            is_bad = not isinstance(error, BadInputError) and type(error).__name__ != "OutOfMemoryError"
            self.send("failures" if is_bad else "left_out", f"{what}: {one_line(error)}")
            self.send("tracebacks", traceback.format_exc())
            return False
        return True

    @property
    def left_s(self) -> float:
        """Seconds until the stage is ended."""
        return max(self.deadline_s - time.monotonic(), 0.0)

    def has(self, seconds: float, what: str) -> bool:
        """Return True if the stage has that long for ``what``; otherwise it is left out."""
        if self.left_s < seconds:
            self.send("left_out", f"{what}: it takes about {seconds:.0f} s, and {self.left_s:.0f} s were left")
        return self.left_s >= seconds


def new_finding(name: str) -> Finding:
    """Return what becomes of a stage: rows; notes; what is left out and worth a second try; checks that failed; its
    state, later "done", "failed", "cut off", "interrupted", "not begun", "no time" or "not here" (one for GPUs)."""
    lists: Finding = {kind: [] for kind in ("rows", "notes", "left_out", "failures", "tracebacks")}
    return {"name": name, "state": "running", "reason": "", "seconds": 0.0} | lists


class Schedule(NamedTuple):
    """Measurement of stages in order, each into a new item of ``findings``; none runs beyond ``end_s``."""

    setting: Setting
    findings: list[Finding]
    end_s: float
    say: Callable[[str], None]
    save: Callable[[], None]  # called whenever there is something new

    def run(self, stages: Sequence[Stage]) -> None:
        """Measure all; end at an interruption, or if the first one fails.

        A stage may take its limit and what the ones before it have left over, but not the limits of those behind it.
        """
        for number, stage in enumerate(stages):
            finding = new_finding(stage.name)
            self.findings.append(finding)
            behind_s = sum(one.limit_s for one in stages[number + 1 :] if self.setting.is_cuda or not one.only_cuda)
            left_s = self.end_s - time.monotonic() - behind_s
            if stage.only_cuda and not self.setting.is_cuda:
                finding["state"], finding["reason"] = "not here", "on CUDA only, unless it is asked for by --only"
            elif left_s < stage.limit_s / 2:  # it would end in the middle
                finding["state"], finding["reason"] = "no time", f"{left_s:.0f} s of {stage.limit_s:.0f} s were left"
            else:
                self.say(f"{stage.name} (at most {left_s:.0f} s)")
                self._measure(stage, finding, left_s)
            self.say("{name}: {state} {reason} ({seconds:.1f} s)".format(**finding))
            self.save()
            if finding["state"] == "interrupted" or (number == 0 and finding["state"] != "done"):
                return

    def _measure(self, stage: Stage, finding: Finding, limit_s: float) -> None:
        """Measure a stage within its limit, in a process of its own."""
        begun_s = time.monotonic()
        receiving, sending = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_run, args=(stage.function, self.setting, begun_s + limit_s, sending))
        try:
            process.start()
            sending.close()
            while finding["state"] == "running":
                left_s = begun_s + limit_s - time.monotonic()
                if left_s > 0 and receiving.poll(left_s):
                    self._take(finding, *receiving.recv())
                else:
                    finding["state"], finding["reason"] = "cut off", f"after {limit_s:.0f} s, its limit"
        except EOFError:  # it has died: else its last message says how it ended
            process.join(5.0)
            code = process.exitcode or 0
            by = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            finding["state"], finding["reason"] = "failed", f"ended by {by}"
        except KeyboardInterrupt:
            finding["state"] = "interrupted"
        finally:
            if process.pid:  # it leads a group of its own: what is left of the stage is killed with it
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.join()
            receiving.close()
            finding["seconds"] = time.monotonic() - begun_s

    def _take(self, finding: Finding, kind: str, content: Any) -> None:
        """Record a message of the stage, and show those that a person waits for."""
        if kind in ("say", "left_out", "failures"):
            self.say({"left_out": "left out: ", "failures": "FAILED: "}.get(kind, "") + content)
        if kind == "end":  # not waited for: what it has started may live on, and is killed
            finding["state"] = "failed" if content or finding["failures"] else "done"
            finding["reason"] = content
        elif kind != "say":
            finding[kind].append(content)
            self.save()


def _run(function: str, setting: Setting, deadline_s: float, sending: Connection) -> None:
    """A stage, in its process."""
    import torch

    os.setsid()
    end_with_parent()
    torch.set_num_threads(1)  # as the trainer does
    channel, handler = Channel(sending, deadline_s), logging.Handler(logging.WARNING)
    # Warnings are lines of the page: a fallback of the product is a finding.
    handler.emit = lambda record: channel.send("notes", f"{record.name}: {record.getMessage()}"[:300])
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    module, _, name = function.partition(":")
    try:
        getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name)(setting, channel)
    except (Exception, SystemExit) as error:  # noqa: BLE001  any error ends this stage, and the others go on
        channel.send("tracebacks", traceback.format_exc())
        channel.send("end", one_line(error))
    else:
        channel.send("end", "")


def end_with_parent() -> None:
    """Let the kernel end this process with the one that started it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # 1: PR_SET_PDEATHSIG


def one_line(error: BaseException) -> str:
    """Return an error in one line, at most 300 characters: as Python prints it, or a user's error alone."""
    is_users = isinstance(error, SystemExit | BadInputError)
    lines = str(error) if is_users else "".join(traceback.format_exception_only(error))
    return " ".join(lines.split())[:300]
