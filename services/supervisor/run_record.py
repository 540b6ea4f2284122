"""Record of a session in `status/run.json`: its processes, restarts and end, for readers such as `icestream status`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from common.status import RunStatus
from common.status_files import write_status
from services.supervisor.session import Processes, SessionOutcome

RUN_STATUS = "run"


class RunRecord:
    """Record of one session, replaced at each change."""

    def __init__(self, run_dir: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._newest = RunStatus(pid=os.getpid(), started_s=clock(), changed_s=clock())
        write_status(run_dir, RUN_STATUS, self._newest)

    def watch(self, processes: Processes) -> None:
        """Write the processes if they have changed; to be called often."""
        self._replace(
            state="stopping" if processes.stopping else "running",
            processes=dict(processes.pids),
            restarts=dict(processes.restarts),
        )

    def ended(self, outcome: SessionOutcome) -> None:
        """Write the end of the session."""
        self._replace(
            state=outcome.exit_status,
            processes={},
            restarts=dict(outcome.restarts),
            exit_code=outcome.exit_code,
            error=outcome.error or "",
        )

    def _replace(self, **changes: object) -> None:
        if any(getattr(self._newest, name) != value for name, value in changes.items()):
            self._newest = self._newest.model_copy(update={**changes, "changed_s": self._clock()})
            write_status(self._run_dir, RUN_STATUS, self._newest)
