"""Outputs process of a run: started beside the services, restarted if it dies, ended last.

It is no part of the stream: the run continues without it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from common.process import PARENT_VARIABLE
from common.python_command import python_command
from services.supervisor.environment import child_environment
from services.supervisor.restart import Ended, Restart, RestartPolicy, UserError

_GRACE_S = 10.0


class OutputsProcess:
    """Outputs process: use start(), then watch() at intervals, then close(). Without a command it does nothing."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        policy: RestartPolicy,
        final_sync_s: float,
        say: Callable[[str], None],
        secrets: Sequence[str] = (),
    ) -> None:
        """``secrets``: see secrets_allowed()."""
        self._command = command
        self._log = log
        self._policy = policy
        self._final_sync_s = final_sync_s
        self._say = say
        self._secrets = secrets
        self._process: subprocess.Popen[bytes] | None = None
        self._due_s: float | None = None

    def start(self) -> None:
        """Start the process, from the main thread: it ends with the thread that started it."""
        if not self._command:
            return
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment(os.environ, self._secrets) | {PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,
            )
        self._policy.started(time.monotonic())
        self._due_s = None

    def watch(self) -> None:
        """Restart the process if it died."""
        if self._due_s is not None and time.monotonic() >= self._due_s:
            self.start()
        if self._process is None or self._process.poll() is None:
            return
        exit_code, self._process = self._process.returncode, None
        match self._policy.ended(exit_code, time.monotonic()):
            case Restart(after_s):
                self._due_s = time.monotonic() + after_s
                self._say(f"outputs ended with {exit_code}; it starts again in {after_s:g} s (its log: {self._log})")
            case UserError():
                self._say(f"outputs are not copied: {self._last_line()}")
            case Ended():
                self._say("outputs are not copied any more: their process was stopped from outside this run")

    def close(self) -> None:
        """Stop the process after the last copies, within a bounded time."""
        if self._due_s is not None:
            self.start()  # it died a moment ago: the last copies are still missing
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        self._say("copying the last outputs")
        try:
            if process.wait(self._final_sync_s + _GRACE_S):
                self._say(self._last_line())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._say(f"the last outputs could not be copied in {self._final_sync_s:g} s (its log: {self._log})")
        except KeyboardInterrupt:
            process.kill()
            process.wait()
            raise

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1].removeprefix("Error: ") if lines else "it printed no reason"


def outputs_command(run_dir: Path, *, take_over: bool) -> list[str]:
    """Command of the real outputs process."""
    command = python_command("icestream", "outputs", "--run-dir", str(run_dir))
    return [*command, "--take-over"] if take_over else command
