"""A child process of the supervisor: its name, command and environment, its log, its end, and when it is started again.

The policy of restarts is pure: the time is passed in.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common.errors import USER_ERROR_EXIT_CODE
from common.own_code import is_own
from common.paths import TRUST_VARIABLE
from common.process import PARENT_VARIABLE, RANK_VARIABLES, python_command, without_secret_variables
from common.text import shown
from services.config.root import ENVIRONMENT_PREFIX, FINAL_SYNC_S, Config

FETCHER = "fetcher"
TRAINER = "trainer"
LOGS_FOLDER = "logs"

_TOKENS = ("BEARER_TOKEN", "BEARER_TOKEN_FILE", "_CONDOR_CREDS")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_STORES = ("AWS_*", "S3_*", "AZURE_*", "GOOGLE_*", "GCS_*", "FSSPEC_*", "HF_*", "GITHUB_*", "X509_*", "SSH_AUTH_SOCK")
"""Variables that fsspec's backends read."""
_WANDB = ("WANDB_*",)


def service_of(name: str) -> str:
    """Return the service of the process ``name``: decoder-1 is a decoder."""
    return name.partition("-")[0]


def fetcher_name(shard: int | None) -> str:
    """Return the name of the fetcher of a shard; None: of a run without shards."""
    return FETCHER if shard is None else f"{FETCHER}-{shard:03d}"


def decoder_name(shard: int | None, index: int) -> str:
    """Return the name of a decoder: decoder-1, or decoder-002-1 in shard 2."""
    return f"decoder-{index}" if shard is None else f"decoder-{shard:03d}-{index}"


def shard_of(name: str) -> int | None:
    """Return the shard of a fetcher or decoder; None in a run without shards, and for a trainer."""
    service, *numbers = name.split("-")
    is_of_shard = len(numbers) == {FETCHER: 1, "decoder": 2}.get(service)
    return int(numbers[0]) if is_of_shard else None


def service_command(name: str, run_dir: Path, on_machine: int = 1, model: str = "") -> list[str]:
    """Return the command of the real service, with this interpreter and this package.

    ``on_machine``: shards of this machine. ``model``: that of the run; a trainer runs the user's own only if told so.
    """
    command = python_command("icestream", service_of(name), "--run-dir", str(run_dir))
    if service_of(name) == TRAINER and is_own(model):
        command += ["--model", model]
    shard = shard_of(name)
    return command if shard is None else [*command, "--shard", str(shard), "--on-machine", str(on_machine)]


def secrets_allowed(config: Config) -> dict[str, tuple[str, ...]]:
    """Return the names of the secrets that are passed to each service where they are set.

    `*` at the end: all with this prefix. A decoder reads local files only: it gets none.
    """
    return {
        "fetcher": (*_TOKENS, *_PROXIES, *_STORES),
        "decoder": (),
        "trainer": (*_WANDB, *_PROXIES) if config.trainer.wandb.mode != "off" else (),
        "outputs": (*_TOKENS, *_PROXIES) if "://" in config.outputs.destination else (),
    }


def child_environment(environment: Mapping[str, str], allowed: Sequence[str] = ()) -> dict[str, str]:
    """Return ``environment`` for a child: without secrets that are not ``allowed`` and variables of `icestream run`.

    The stored configuration contains the settings among them already, below the flags.
    """
    return {
        name: value
        for name, value in without_secret_variables(environment, allowed).items()
        if name == TRUST_VARIABLE or not (name.startswith(ENVIRONMENT_PREFIX) or name in RANK_VARIABLES)
    }


LONGEST_PAUSE_S = 300.0
"""Pause up to which those between restarts grow."""
HEALTHY_S = 60.0
"""Lifetime from which a death counts as a new failure."""

MOST_FAILURES = 5
"""Failures in a row with the same error and no step in between, after which a restart can't help."""

_OF_THE_MACHINE = re.compile(
    r"(?:[\w.]*\.)?(?:{names})\b|.*(?:CUDA|NCCL|cuDNN|out of memory|rank \d+)".format(
        names="|".join(
            name
            for name, kind in vars(builtins).items()
            if isinstance(kind, type) and issubclass(kind, OSError | MemoryError)
        )
        + r"|MachineError|TransientError|OutOfMemoryError|AcceleratorError|OperationalError|RankLost|Dist\w*Error"
    )
)
"""Errors whose cause is the machine, a device, the network or another rank: they may pass."""
_ERROR_LINE = re.compile(
    r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b|\S+ \S+ \S+ (?:ERROR|CRITICAL) (?P<logged>.+)"
)
_LONGEST_ERROR = 300


class RestartPolicy:
    """The restarts of one process. Pauses double from ``min_s`` to LONGEST_PAUSE_S while it keeps dying early."""

    def __init__(self, min_s: float) -> None:
        self._min_s = self._pause_s = min_s
        self._started_s = 0.0
        self._starts = 0
        self._returns = 0

    @property
    def restarts(self) -> int:
        """Number of starts after the first."""
        return max(0, self._starts - 1 - self._returns)

    def returns(self) -> None:
        """Record that a process that left in good order is wanted again: its next start is no restart."""
        self._returns += 1

    def started(self, now_s: float) -> None:
        """Record a start or restart."""
        self._starts += 1
        self._started_s = now_s

    def died(self, now_s: float) -> float:
        """Return the pause before the restart of a process that ended now."""
        if now_s - self._started_s > HEALTHY_S:
            self._pause_s = self._min_s
        pause_s = min(self._pause_s, LONGEST_PAUSE_S)
        self._pause_s = 2 * pause_s
        return pause_s


class RepeatedFailure:
    """The failures of one service in a row with the same error and without progress of the training in between.

    Errors of the machine don't count, since they may pass, nor do kills.
    """

    def __init__(self) -> None:
        self._error = ""
        self._furthest_step = 0
        self.times = 0

    def again(self, exit_code: int, error: str, step: int) -> bool:
        """Record a failure with ``error`` (a traceback's last line) at ``step``; True if a restart can't help."""
        if exit_code <= 0 or not error or _OF_THE_MACHINE.match(error):
            return False
        error = re.sub(r"\d+", "#", error)  # its numbers may be others each time
        is_same = error == self._error and step <= self._furthest_step
        self.times = self.times + 1 if is_same else 1
        self._error = error
        self._furthest_step = max(self._furthest_step, step)
        return self.times >= MOST_FAILURES


class Child:
    """A process with its log; alive from start() to reap() or leave_behind()."""

    def __init__(self, name: str, log: Path, policy: RestartPolicy) -> None:
        self.name = name
        self.service, self.shard = service_of(name), shard_of(name)
        self.log = log
        self.policy = policy
        self.due_s = math.inf
        """Time of the next start."""
        self.pid = 0
        """Process id since the newest start, also after the end."""
        self.exit_code = 0
        """Exit code of the newest end."""
        self.retired = False
        """True if it left because fewer decoders are wanted."""
        self.pidfd = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def alive(self) -> bool:
        """True from the start until the end is known."""
        return self._process is not None

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the process in a session of its own; its output is appended to the log."""
        self.due_s = math.inf
        log = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            self._log_start = os.fstat(log).st_size
            # A session of its own: the terminal's Ctrl-C reaches the supervisor only, which stops in order.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        finally:
            os.close(log)
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)

    def send(self, number: signal.Signals) -> None:
        """Send a signal if the process is alive."""
        if self._process is not None:
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Kill the process and all that it has started. The pid is still valid: only `reap` waits for it."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the process has ended, or the time is up (None: for ever); True if it has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.pidfd, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))

    def reap(self) -> int:
        """Return the exit code (minus the signal that killed it), and kill the processes that it has started."""
        assert self._process is not None
        self.wait()
        self.kill()
        self.exit_code = self._process.wait()
        os.close(self.pidfd)
        self.pidfd, self._process = -1, None
        return self.exit_code

    def leave_behind(self) -> None:
        """Stop waiting for the process."""
        assert self._process is not None
        os.close(self.pidfd)
        self._process.returncode = self.exit_code = -signal.SIGKILL  # or Python would complain that it runs
        self.pidfd, self._process = -1, None

    def user_error(self) -> str:
        """Return the text of the last line "Error: …" in the log since the last start."""
        for line in reversed(self.lines()):
            if line.startswith("Error: "):
                return line.removeprefix("Error: ")
        return f"ended with exit code {USER_ERROR_EXIT_CODE}; see {self.log}"

    def last_error(self) -> str:
        """Return the last line of an error since the last start, a traceback's or a logged one; empty if none."""
        for line in reversed(self.lines()):
            if match := _ERROR_LINE.match(line):
                return shown(match["logged"] or line, _LONGEST_ERROR)
        return ""

    def lines(self) -> list[str]:
        """Return the last lines of the log since the last start."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - (1 << 16)))
            return log.read().decode(errors="replace").splitlines()
        return []


def how_it_ended(exit_code: int) -> str:
    """Return words on the end of a process, to follow its name, from its exit code (or minus the signal)."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


_OUTPUTS_GRACE_S = 10.0


class OutputsProcess:
    """The outputs process: use start(), then watch() at intervals, then close(). Nothing without a destination."""

    def __init__(self, run_dir: Path, config: Config, say: Callable[[str], None], *, take_over: bool) -> None:
        """``take_over``: another run's copies at the destination are replaced."""
        self._is_wanted = bool(config.outputs.destination)
        self._command = python_command("icestream", "outputs", "--run-dir", str(run_dir))
        if take_over:
            self._command += ["--take-over"]
        self._secrets = secrets_allowed(config)["outputs"]
        self._say = say
        log = run_dir / LOGS_FOLDER / "outputs.log"
        self._child = Child("outputs", log, RestartPolicy(config.local.restart_min_s))

    def start(self) -> None:
        """Start the process, from the main thread: it ends with the thread that started it."""
        if not self._is_wanted:
            return
        self._child.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        parent = {PARENT_VARIABLE: str(os.getpid())}
        self._child.start(self._command, child_environment(os.environ, self._secrets) | parent)
        self._child.policy.started(time.monotonic())

    def watch(self) -> None:
        """Restart the process if it died."""
        child = self._child
        if time.monotonic() >= child.due_s:
            self.start()
        if not child.alive or not child.wait(0.0):
            return
        exit_code = child.reap()
        if exit_code == 0:
            self._say("outputs are not copied any more: their process was stopped from outside this run")
        elif exit_code == USER_ERROR_EXIT_CODE:
            self._say(f"outputs are not copied: {self._last_line()}")
        else:
            pause_s = child.policy.died(time.monotonic())
            child.due_s = time.monotonic() + pause_s
            self._say(f"outputs ended with {exit_code}; it starts again in {pause_s:g} s (its log: {child.log})")

    def close(self) -> None:
        """Stop the process after the last copies, within a bounded time."""
        child = self._child
        if child.due_s < math.inf:
            self.start()  # it died a moment ago: the last copies are still missing
        if not child.alive:
            return
        child.send(signal.SIGTERM)
        self._say("copying the last outputs")
        try:
            if not child.wait(FINAL_SYNC_S + _OUTPUTS_GRACE_S):
                child.kill()
                self._say(f"the last outputs could not be copied in {FINAL_SYNC_S:g} s (its log: {child.log})")
            elif child.reap():
                self._say(self._last_line())
        finally:  # after Ctrl-C, too
            if child.alive:
                child.kill()
                child.reap()

    def _last_line(self) -> str:
        lines = self._child.lines()
        return lines[-1].removeprefix("Error: ") if lines else "it printed no reason"
