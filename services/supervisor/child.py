"""A child process of the supervisor and its log file."""

from __future__ import annotations

import contextlib
import math
import os
import re
import selectors
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.errors import USER_ERROR_EXIT_CODE
from common.redact import shown
from services.supervisor.restart import RestartPolicy

_ERROR_LINE = re.compile(
    r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b|\S+ \S+ \S+ (?:ERROR|CRITICAL) (?P<logged>.+)"
)
_LONGEST_ERROR = 300


class Child:
    """Process with its log; alive from start() to reap() or leave_behind()."""

    def __init__(self, name: str, log: Path, policy: RestartPolicy) -> None:
        self.name = name
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
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
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
        """Exit code (minus the signal that killed it). Processes that it has started are killed."""
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
        """Text of the last line "Error: …" in the log since the last start."""
        for line in reversed(self._lines()):
            if line.startswith("Error: "):
                return line.removeprefix("Error: ")
        return f"ended with exit code {USER_ERROR_EXIT_CODE}; see {self.log}"

    def last_error(self) -> str:
        """Last line of an error in the log since the last start: a traceback's, or a logged one; empty without any."""
        for line in reversed(self._lines()):
            if found := _ERROR_LINE.match(line):
                return shown(found["logged"] or line, _LONGEST_ERROR)
        return ""

    def _lines(self) -> list[str]:
        """Last lines of the log since the last start."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - (1 << 16)))
            return log.read().decode(errors="replace").splitlines()
        return []


def how_it_ended(exit_code: int) -> str:
    """Text on the end of a process, to follow its name; from its exit code (minus the signal that killed it)."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
