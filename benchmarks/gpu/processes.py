"""Processes of stages: each is forked from one that has loaded torch and never touched the GPU.

So an error on the device, which ends all work of its process there, ends one stage; and a stage that takes too long can
be killed, with all processes that it has started.
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
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from benchmarks.gpu.channel import Channel, Finding
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.stages import Stage
from common.errors import BadInputError

_PR_SET_PDEATHSIG = 1
_STILL_S = 10.0
"""Time without a line after which the stage is named again."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch"])

Say = Callable[[str], None]


def measure(stage: Stage, setting: Setting, limit_s: float, say: Say) -> Finding:
    """Findings of a stage within its limit, in a process of its own."""
    begun_s = time.monotonic()
    deadline_s = begun_s + limit_s
    finding = Finding(stage.name)
    receiving, sending = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(stage.module, setting, deadline_s, sending), name=stage.name)
    process.start()
    sending.close()
    try:
        if _follow(receiving, finding, deadline_s, say):
            process.join(5.0)
            _judge(finding, process)
        else:
            finding.state, finding.reason = "cut off", f"after {limit_s:.0f} s, its limit"
    except KeyboardInterrupt:
        finding.state = "interrupted"
    finally:
        _end(process)
        receiving.close()
    finding.seconds = time.monotonic() - begun_s
    return finding


def _follow(receiving: Connection, finding: Finding, deadline_s: float, say: Say) -> bool:
    """Take messages until the stage has ended; False at its deadline."""
    last = "started"

    def remember(text: str) -> None:
        nonlocal last
        last = text
        say(text)

    while (left_s := deadline_s - time.monotonic()) > 0:
        if not receiving.poll(min(left_s, _STILL_S)):
            say(f"… still: {last} ({max(left_s - _STILL_S, 0.0):.0f} s left for this stage)")
            continue
        try:
            message = receiving.recv()
        except EOFError:
            return True
        if message[0] == "error":
            finding.state = "failed"
            finding.reason, finding.traceback = message[1]
        else:
            finding.take(message, remember)
    return False


def _judge(finding: Finding, process: BaseProcess) -> None:
    """Name a death that sent no error: a signal, or an exit."""
    code = process.exitcode
    if finding.state == "failed" or not code:
        return
    finding.state = "failed"
    finding.reason = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _end(process: BaseProcess) -> None:
    """Kill what is left of the stage; its process leads a group of its own."""
    assert process.pid is not None
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _run(module: str, setting: Setting, deadline_s: float, sending: Connection) -> None:
    """A stage, in its process."""
    import torch

    os.setsid()
    end_with_parent()
    torch.set_num_threads(1)  # as the trainer does
    channel = Channel(sending.send, deadline_s)
    logging.basicConfig(handlers=[_Warnings(channel)], level=logging.WARNING, force=True)
    try:
        importlib.import_module(module).run(setting, channel)
    except (Exception, SystemExit) as error:  # noqa: BLE001  any error ends this stage, and the others go on
        sending.send(("error", (last_line(error), traceback.format_exc())))
    sending.close()


def end_with_parent() -> None:
    """Let the kernel end this process with the one that started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def last_line(error: BaseException) -> str:
    """Last line of an error, at most 300 characters: as Python prints it, or only its text where that is for users."""
    if isinstance(error, SystemExit | BadInputError):
        return str(error)[:300]
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    # CUDA's errors end with advice for those who build torch; their first line says what it was.
    line = lines[0] if lines and "CUDA" in lines[0] else lines[-1]
    return line.strip()[:300]


class _Warnings(logging.Handler):
    """Warnings of the product, as lines of the page: a fallback is a finding."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(logging.WARNING)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Send the warning."""
        if record.name.partition(".")[0] in {"common", "services", "workloads"}:
            self._channel.leave_out(f"a warning: {record.getMessage()}")
        else:
            self._channel.say(f"{record.name}: {record.getMessage()}"[:300])
