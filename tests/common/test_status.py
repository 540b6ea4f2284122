from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from common import status_files
from common.rarely import Rarely
from common.status import Counters, FetcherStatus, RunStatus, TrainerStatus
from common.status_files import STATUS_FOLDER, read_status, write_status


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    status = TrainerStatus(state="training", step=3, losses={"c_loss": -1.5}, counters=Counters(events_read=5))
    write_status(tmp_path, "trainer", status)
    assert read_status(tmp_path, "trainer", TrainerStatus) == status


def test_the_newest_status_replaces_the_former_and_leaves_no_part(tmp_path: Path) -> None:
    for files in (1, 2):
        write_status(tmp_path, "fetcher", FetcherStatus(files_total=files))
    found = read_status(tmp_path, "fetcher", FetcherStatus)
    assert found is not None
    assert found.files_total == 2
    assert [path.name for path in (tmp_path / STATUS_FOLDER).iterdir()] == ["fetcher.json"]


def test_there_is_no_status_before_the_first(tmp_path: Path) -> None:
    assert read_status(tmp_path, "fetcher", FetcherStatus) is None


@pytest.mark.parametrize("text", ["", "{", '{"state": "unheard of"}', "[]"])
def test_a_file_that_is_no_status_is_none(tmp_path: Path, text: str) -> None:
    write_status(tmp_path, "fetcher", FetcherStatus())
    (tmp_path / STATUS_FOLDER / "fetcher.json").write_text(text)
    assert read_status(tmp_path, "fetcher", FetcherStatus) is None


def test_the_folder_is_the_owners_only(tmp_path: Path) -> None:
    write_status(tmp_path, "fetcher", FetcherStatus())
    assert stat.S_IMODE((tmp_path / STATUS_FOLDER).stat().st_mode) == 0o700


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_service_without_a_free_descriptor_still_writes_its_status(tmp_path: Path) -> None:
    write_status(tmp_path, "fetcher", FetcherStatus(files_total=0))
    with no_descriptor_left():
        for files in (1, 2, 3):
            write_status(tmp_path, "fetcher", FetcherStatus(files_total=files, problem="too many open files"))
    found = read_status(tmp_path, "fetcher", FetcherStatus)
    assert found is not None
    assert found.files_total == 3


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_a_status_that_can_not_be_written_ends_no_service_and_is_told(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(status_files, "_not_written", Rarely(logging.getLogger(__name__)))
    write_status(tmp_path, "fetcher", FetcherStatus(files_total=1))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fail)
        for _ in range(100):
            write_status(tmp_path, "fetcher", FetcherStatus(files_total=2))
    assert len(caplog.records) == 5
    assert os.strerror(number) in caplog.records[0].getMessage()
    found = read_status(tmp_path, "fetcher", FetcherStatus)
    assert found is not None
    assert found.files_total == 1
    write_status(tmp_path, "fetcher", FetcherStatus(files_total=3))
    found = read_status(tmp_path, "fetcher", FetcherStatus)
    assert found is not None
    assert found.files_total == 3


def test_counters_add_up_when_every_event_has_one_fate() -> None:
    fates = {"events_trained": 5, "events_outlier": 1, "events_empty": 2, "events_quarantined": 3}
    fates |= {"events_held_out": 4, "events_invalid": 6}
    assert Counters(events_read=21, **fates).adds_up()
    assert not Counters(events_read=22, **fates).adds_up()
    for name in fates:
        assert not Counters(events_read=21, **(fates | {name: 0})).adds_up()


def test_a_status_is_immutable() -> None:
    with pytest.raises(ValidationError):
        Counters().events_read = 1  # type: ignore[misc]


@pytest.mark.process
def test_a_forked_process_does_not_close_the_descriptor_that_its_parent_kept_in_reserve(tmp_path: Path) -> None:
    write_status(tmp_path, "run", RunStatus())
    reserve, _ = status_files._reserve
    child = os.fork()
    if child == 0:  # as after a fork that closes the descriptors, and opens a file that gets the number
        os.dup2(os.open(tmp_path, os.O_RDONLY), reserve)
        write_status(tmp_path, "fetcher", FetcherStatus())
        with contextlib.suppress(OSError):
            os._exit(0 if os.path.samestat(os.fstat(reserve), tmp_path.stat()) else 1)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
