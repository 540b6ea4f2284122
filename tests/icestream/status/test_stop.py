"""`icestream stop` on run directories whose lock a small process holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from json import dumps
from pathlib import Path

import pytest
from click.testing import CliRunner
from run_dirs import made_run, session

from common import file_lock
from common.errors import BadInputError
from common.file_lock import Holder, RunLock, RunPart
from common.status import RunStatus
from common.status_files import write_status
from icestream.commands import stop as module
from icestream.commands.stop import stop

HOLDER = """
import sys, time
from pathlib import Path
from common.file_lock import RunLock
from common.process import StopFlag

run_dir, part = sys.argv[1:]
stopped = StopFlag()
with RunLock(Path(run_dir), part, "icestream run"):
    print("held", flush=True)
    while not stopped:
        time.sleep(0.01)  # not pause(): a signal just before it would not be heard
"""


@contextmanager
def holding(run_dir: Path, part: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLDER, str(run_dir), part]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def leave_note(run_dir: Path, holder: Holder) -> None:
    (run_dir / "locks").mkdir()
    (run_dir / "locks/run").write_text(dumps(asdict(holder)))


@pytest.mark.process
@pytest.mark.parametrize("part", ["run", "trainer"])
def test_the_supervisor_or_a_trainer_started_by_hand_is_asked_and_waited_for(tmp_path: Path, part: str) -> None:
    made_run(tmp_path, session())
    with holding(tmp_path, part) as process:
        if part == "run":
            write_status(tmp_path, "run", session(state="interrupted", exit_code=130))
        result = CliRunner().invoke(stop, [str(tmp_path)])
        assert process.wait(60) == 0, "it was asked by SIGTERM, and ended by itself"
    assert f"process {process.pid} on" in result.output
    if part == "run":
        assert result.exit_code == 0
        assert "state       interrupted" in result.output
        assert f"next        resume: icestream run --run-dir {tmp_path}" in result.output


def test_a_process_that_has_the_pid_of_a_killed_run_gets_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_run(tmp_path, session())
    here = Holder.of_this_process("icestream run")
    leave_note(tmp_path, replace(here, start_ticks=here.start_ticks - 1))
    got: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    try:
        result = CliRunner().invoke(stop, [str(tmp_path)])
    finally:
        signal.signal(signal.SIGTERM, former)
    assert got == []
    assert "is not running" in result.output
    assert "killed" in result.output
    assert result.exit_code == 0


@pytest.mark.parametrize("forged", ["note", "link to the folder", "link to the file"])
def test_a_forged_note_makes_nobody_signal_a_process_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forged: str
) -> None:
    """The foreign process that keeps the lock of the forged note is here a patch."""
    for name in ("theirs", "mine"):
        (tmp_path / name).mkdir()
    theirs, mine = made_run(tmp_path / "theirs", session()), made_run(tmp_path / "mine", session())
    monkeypatch.setattr(file_lock, "_is_held", lambda path: True)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *signalled: pytest.fail(f"a signal: {signalled}"))
    with RunLock(mine, "run", "icestream run"):
        if forged == "note":
            leave_note(theirs, Holder.of_this_process("icestream run"))
        elif forged == "link to the folder":
            (theirs / "locks").symlink_to(mine / "locks")
        else:
            (theirs / "locks").mkdir()
            (theirs / "locks/run").symlink_to(mine / "locks/run")
        with pytest.raises(BadInputError, match=r"which does not hold it.*nothing was stopped"):
            CliRunner().invoke(stop, [str(theirs)], catch_exceptions=False)


def test_a_run_on_another_host_is_not_stopped_from_here(tmp_path: Path) -> None:
    made_run(tmp_path, session())
    leave_note(tmp_path, replace(Holder.of_this_process("icestream run"), host="node-b", boot_id="b"))
    with pytest.raises(BadInputError, match=r"process \d+ on node-b, which can't be seen from here: stop it there"):
        CliRunner().invoke(stop, [str(tmp_path)], catch_exceptions=False)


def test_another_users_run_is_not_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, number: int) -> None:
        raise PermissionError

    made_run(tmp_path, session())
    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with (
        RunLock(tmp_path, "run", "icestream run"),
        pytest.raises(BadInputError, match="of another user: only they can stop it"),
    ):
        CliRunner().invoke(stop, [str(tmp_path)], catch_exceptions=False)


def test_a_run_that_failed_while_it_stopped_gives_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_run(tmp_path, session())
    lock = RunLock(tmp_path, "run", "icestream run")

    def ends(run_dir: Path, part: RunPart, holder: Holder) -> None:
        lock.close()
        write_status(run_dir, "run", RunStatus(state="failed", changed_s=2e9, error="why", pid=os.getpid()))

    monkeypatch.setattr(module, "ask_to_stop", ends)
    monkeypatch.setattr(module, "_wait", lambda run_dir, holder: None)
    result = CliRunner().invoke(stop, [str(tmp_path)])
    assert result.exit_code == 1
    assert "failed" in result.output
