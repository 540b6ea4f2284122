"""Fetcher and decoders of one stream, as children of the caller's process."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.python_command import python_command
from common.run_words import bottleneck
from common.status import FetcherStatus
from common.status_files import read_status
from icestream.streaming.python_words import in_python
from services.config.local import LocalConfig
from services.supervisor.child import Child, how_it_ended
from services.supervisor.names import LOGS_FOLDER
from services.supervisor.restart import RestartPolicy, UserError

logger = logging.getLogger("icestream")

_LOOK_S = 0.1
"""Pause between two looks at the process."""
_SILENCE_S = 10.0
"""Wait for data after which the log says why."""
_STOP_S = 30.0


class Services:
    """Process of services_process.py, with the fetcher and the decoders below it; restarted if it dies."""

    def __init__(self, run_dir: Path, local: LocalConfig, *, temporary: bool) -> None:
        """``temporary``: the run directory is deleted at the end."""
        self.run_dir = run_dir
        self.error: str | None = None
        """Error that ends the stream."""
        self._temporary = temporary
        self._child = Child(
            "services",
            run_dir / LOGS_FOLDER / "stream.log",
            RestartPolicy(local.restart_min_s, local.restart_max_s),
        )
        self._looked_s = 0.0
        self._says_why_s = math.inf

    def start(self) -> None:
        """Start the process."""
        self._child.log.parent.mkdir(mode=0o700, exist_ok=True)
        kind = "temporary" if self._temporary else "kept"
        command = python_command("icestream.streaming.services_process", str(self.run_dir), str(os.getpid()), kind)
        with ctrl_c_later():
            self._child.start(command, os.environ | {"PYTHONUNBUFFERED": "1"})
        self._child.policy.started(time.monotonic())

    def ended(self) -> bool:
        """True once an error has ended the stream; restarts the process if it died. To be called while waiting."""
        now_s = time.monotonic()
        if self.error is not None or now_s - self._looked_s < _LOOK_S:
            return self.error is not None
        self._looked_s = now_s
        child = self._child
        if child.alive and child.wait(0.0):
            exit_code = child.reap()
            if isinstance(child.policy.ended(exit_code, now_s), UserError):
                self.error = child.user_error()
            else:
                pause_s = child.policy.died(now_s).after_s
                child.due_s = now_s + pause_s
                logger.warning(
                    "the stream's services %s; they start again in %g s (log: %s)",
                    how_it_ended(exit_code),
                    pause_s,
                    child.log,
                )
        if not child.alive and now_s >= child.due_s:
            self.start()
        if now_s >= self._says_why_s:
            self._says_why_s = now_s + 3 * _SILENCE_S
            logger.warning("no data yet: %s", in_python(self.reason_of_wait()))
        return self.error is not None

    @property
    def end_reason(self) -> str:
        """Error that ended the stream, or that it was stopped."""
        return self.error or "the stream was stopped"

    def begin_wait(self) -> None:
        """Note that the caller asks for data."""
        self._says_why_s = time.monotonic() + _SILENCE_S

    def reason_of_wait(self) -> str:
        """Stage that the stream waits for, in words."""
        status = read_status(self.run_dir, "fetcher", FetcherStatus)
        if status is None:
            return f"the fetcher is starting (log: {self._child.log.with_name('fetcher.log')})"
        if status.problem:
            return status.problem
        if status.listing:
            return f"the inputs are being listed, {status.listed or 'waiting for the first answer'}"
        if status.bottleneck in ("none", "trainer"):  # the caller is the trainer, and waits
            return f"the fetcher has delivered nothing so far (its log: {self._child.log.with_name('fetcher.log')})"
        return f"bottleneck {bottleneck(status)}"

    def stop(self) -> None:
        """Stop all processes, and delete a temporary run directory."""
        if self._child.alive:
            self._child.send(signal.SIGTERM)
            if not self._child.wait(_STOP_S):
                self._child.kill()
            self._child.reap()
        self._child.due_s = math.inf
        if self._temporary:
            shutil.rmtree(self.run_dir, ignore_errors=True)


@contextmanager
def ctrl_c_later() -> Iterator[None]:
    """Keep a Ctrl-C for the end of the block: amid the start of a process it would leave one that nobody stops."""
    former = signal.getsignal(signal.SIGINT)
    if former is None or threading.current_thread() is not threading.main_thread():  # only that one is interrupted
        yield
        return
    kept: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: kept.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if kept:
        signal.raise_signal(signal.SIGINT)
