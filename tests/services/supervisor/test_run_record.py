"""Record of a session, with a made-up clock."""

from __future__ import annotations

import os
from pathlib import Path

from common.status import RunStatus
from common.status_files import read_status
from services.supervisor.run_record import RUN_STATUS, RunRecord
from services.supervisor.session import Processes, SessionOutcome


def test_the_record_follows_the_processes_and_keeps_the_end(tmp_path: Path) -> None:
    now_s = [100.0]
    record = RunRecord(tmp_path, clock=lambda: now_s[0])

    def written() -> RunStatus:
        status = read_status(tmp_path, RUN_STATUS, RunStatus)
        assert status is not None
        return status

    assert written() == RunStatus(state="running", pid=os.getpid(), started_s=100.0, changed_s=100.0)
    now_s[0] = 101.0
    record.watch(Processes({"fetcher": 7, "trainer": 8}, {"trainer": 1}))
    assert (written().processes, written().restarts) == ({"fetcher": 7, "trainer": 8}, {"trainer": 1})
    record.watch(Processes({"fetcher": 7}, {"trainer": 1}, stopping=True))
    assert written().state == "stopping"
    now_s[0] = 160.0
    record.ended(SessionOutcome("failed", 2, "trainer: no", {"trainer": 1}, 60.0))
    assert written() == RunStatus(
        state="failed",
        pid=os.getpid(),
        started_s=100.0,
        changed_s=160.0,
        restarts={"trainer": 1},
        exit_code=2,
        error="trainer: no",
    )


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.watch(Processes({"fetcher": 7}, {}))
    path = tmp_path / "status" / "run.json"
    path.unlink()
    record.watch(Processes({"fetcher": 7}, {}))
    assert not path.exists()
