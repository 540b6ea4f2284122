"""Log of the supervisor."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from stand_ins import CTRL_C, EVERYONE, Stage, started, started_times

from services.supervisor.supervisor_log import supervisor_log


@pytest.mark.process
def test_starts_and_ends_of_every_process_are_in_the_log(stage: Stage) -> None:
    stage.script = [
        (started(*EVERYONE), lambda: os.kill(stage.processes.pids["decoder-1"], signal.SIGKILL)),
        (started_times("decoder-1", 2), CTRL_C),
    ]
    with supervisor_log(stage.run_dir):
        stage.run()
    lines = [line.partition(" supervisor INFO ")[2] for line in log_of(stage.run_dir).splitlines()]
    assert sum(line.startswith("decoder-1 started, process ") for line in lines) == 2
    assert "decoder-1 was killed by SIGKILL" in lines
    assert "trainer ended with exit code 0" in lines


def test_the_log_is_appended_redacted_and_for_its_owner_only(tmp_path: Path) -> None:
    old_mask = os.umask(0o077)
    try:
        for text in ("first", "https://data.example/x?authz=secret"):
            with supervisor_log(tmp_path) as log:
                log.info("%s", text)
            log.info("not while the log is closed")
    finally:
        os.umask(old_mask)
    assert [line.split(" INFO ")[1] for line in log_of(tmp_path).splitlines()] == ["first", "https://data.example/x?…"]
    assert (tmp_path / "logs" / "supervisor.log").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "supervisor.log").symlink_to("/dev/full")
    with supervisor_log(tmp_path) as log:
        log.info("nobody can write this")
    assert capsys.readouterr().err == ""


def log_of(run_dir: Path) -> str:
    return (run_dir / "logs" / "supervisor.log").read_text()
