"""Begin of a stream: whatever interrupts it leaves nothing behind that the next try would stumble over."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from muon_files import make_events, write_events

import icestream
from common.locks import holder_of
from icestream import stream_session as session
from icestream.stream_session import Services
from services.supervisor.child import Child


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return write_events(tmp_path / "one.parquet", make_events([1, 2]))


def begins_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def store(*_: object) -> None:
        raise error

    monkeypatch.setattr(session, "store_config", store)


@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_while_a_stream_begins_leaves_no_lock_and_no_folder(
    file: Path, monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    run_dir = file.with_name("run")
    stream = icestream.stream(file, device="cpu", run_dir=run_dir if kept else None)
    for error in (KeyboardInterrupt(), BrokenPipeError(), KeyboardInterrupt()):
        begins_with(error, monkeypatch)
        with pytest.raises((KeyboardInterrupt, icestream.BadInputError), match=r"^$|can't be used"):
            next(iter(stream))
        assert holder_of(run_dir, "trainer") is None
        assert list(file.with_name("tmp").iterdir()) == []


def test_ctrl_c_amid_the_start_of_the_services_is_kept_until_they_can_be_stopped(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def interrupted(child: Child, *arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("started")

    stop = Services.stop
    monkeypatch.setattr(Child, "start", interrupted)
    monkeypatch.setattr(Services, "stop", lambda services: (steps.append("stopped"), stop(services)))
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background have it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            next(iter(icestream.stream(file, device="cpu")))
    finally:
        signal.signal(signal.SIGINT, former)
    assert steps == ["started", "stopped"]
    assert list(file.with_name("tmp").iterdir()) == []


def test_a_full_or_missing_temporary_folder_is_one_clear_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = icestream.stream(file, device="cpu")
    monkeypatch.setattr(tempfile, "tempdir", str(file.with_name("missing")))
    with pytest.raises(icestream.BadInputError, match=r"temporary folder \(TMPDIR\) can't be used: .*No such file"):
        next(iter(stream))
    monkeypatch.setattr(tempfile, "tempdir", str(file.with_name("tmp")))
    begins_with(OSError(errno.ENOSPC, "No space left on device"), monkeypatch)
    with pytest.raises(icestream.BadInputError, match=r"\(TMPDIR\) can't be used: .*No space left"):
        next(iter(stream))


def test_a_run_directory_that_others_may_write_to_is_refused(file: Path) -> None:
    run_dir = file.with_name("run")
    run_dir.mkdir()
    run_dir.chmod(0o777)
    with pytest.raises(icestream.BadInputError, match="can be changed by every user"):
        icestream.stream(file, device="cpu", run_dir=run_dir)


@pytest.mark.process
def test_a_stream_is_refused_in_a_forked_child_which_would_take_its_parents_events(file: Path) -> None:
    stream = icestream.stream(file, device="cpu")
    child = os.fork()
    if child == 0:
        try:
            next(iter(stream))
        except icestream.BadInputError as error:
            os._exit(0 if "forked child" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
