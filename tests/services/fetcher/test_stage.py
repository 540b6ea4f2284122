"""One file: staged, bad, gone, or not to be had this time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from muon_files import make_events, write_events

from common.config import StreamConfig
from common.errors import BadInputError, TransientError
from common.files.inputs import NOT_UTF8
from common.files.transfer import WrongSizeError
from common.own_faults import OwnFaults
from common.plan import Footer, RowGroup, SlotCapacity, SourceFile, StagedFile
from services.fetcher.staging.cache import Cache
from services.fetcher.staging.stage import NotStaged, Stage
from workloads.muons.columns import MUONS

STREAM = StreamConfig()
REMOTE = SourceFile("https://user:secret@host/f.parquet?token=secret", 7)
FOOTER = Footer((RowGroup(5, 9),))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    cache = Cache(tmp_path / "cache", tmp_path / "run")
    yield Stage(cache, MUONS, STREAM, SlotCapacity(MUONS, STREAM))
    cache.close()


def failing(stage: Stage, error: Exception) -> Stage:
    def fetch(source: SourceFile, path: Path) -> None:
        raise error

    return replace(stage, fetch=fetch)


def local(path: Path) -> SourceFile:
    return SourceFile(str(path), path.stat().st_size)


def test_a_local_file_is_used_in_place(stage: Stage, tmp_path: Path) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([1, 2, 3]))
    staged = stage(4, local(path), None)
    assert isinstance(staged, StagedFile)
    assert (staged.file, staged.path, staged.remote) == (4, str(path), "")
    assert staged.footer is not None
    assert staged.footer.rows == 3


def test_a_local_file_that_changed_is_bad_and_told_with_both_sizes(stage: Stage, tmp_path: Path) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([1]))
    staged = stage(0, SourceFile(str(path), 7), None)
    assert isinstance(staged, StagedFile)
    assert staged.footer is None
    assert "the frozen inventory says 7" in staged.reason
    assert staged.reason.startswith(str(path))


def test_what_may_pass_says_nothing_of_the_file(stage: Stage) -> None:
    stage = failing(stage, TransientError("the server does not answer"))
    staged = stage(3, REMOTE, None)
    assert isinstance(staged, NotStaged)
    assert staged.file == 3
    assert "the server does not answer" in staged.reason
    assert "secret" not in staged.reason
    assert isinstance(stage(3, REMOTE, FOOTER), NotStaged), "also if its footer is known"


@pytest.mark.parametrize("error", [BadInputError("it does not exist any more"), WrongSizeError("9 bytes arrived")])
def test_a_file_that_can_not_be_had_is_bad(stage: Stage, error: Exception) -> None:
    stage = failing(stage, error)
    staged = stage(0, REMOTE, None)
    assert isinstance(staged, StagedFile)
    assert staged.footer is None
    assert str(error) in staged.reason
    assert "secret" not in staged.reason


def test_a_file_that_was_planned_and_is_gone_keeps_its_units(stage: Stage) -> None:
    stage = failing(stage, BadInputError("it does not exist any more"))
    staged = stage(0, REMOTE, FOOTER)
    assert isinstance(staged, StagedFile)
    assert (staged.footer, staged.path) == (FOOTER, "")
    assert "host/f.parquet" in staged.remote
    assert "secret" not in staged.remote


def test_a_full_disk_says_nothing_of_the_file(stage: Stage) -> None:
    staged = failing(stage, OSError(errno.ENOSPC, "No space left on device"))(3, REMOTE, None)
    assert isinstance(staged, NotStaged)
    assert "the disk is full" in staged.reason
    assert "free some space" in staged.reason


def test_a_remote_file_is_fetched_once_and_used_from_the_cache(stage: Stage, tmp_path: Path) -> None:
    served = write_events(tmp_path / "f.parquet", make_events([1, 2, 3]))
    source = SourceFile("https://host/f.parquet?token=secret", served.stat().st_size)
    fetched: list[Path] = []

    def fetch(source: SourceFile, path: Path) -> None:
        fetched.append(path)
        path.write_bytes(served.read_bytes())

    for _ in range(2):
        staged = replace(stage, fetch=fetch)(0, source, None)
        assert isinstance(staged, StagedFile)
        assert staged.footer is not None
        assert staged.path == str(stage.path(source))
        assert Path(staged.path).read_bytes() == served.read_bytes()
    assert len(fetched) == 1


@pytest.mark.parametrize("number", sorted(set(errno.errorcode) - {errno.ENOSPC, errno.EDQUOT}))
@pytest.mark.parametrize("footer", [None, FOOTER])
def test_no_errno_of_the_cache_says_anything_of_the_file(stage: Stage, number: int, footer: Footer | None) -> None:
    staged = failing(stage, OSError(number, "told by the kernel"))(3, REMOTE, footer)
    assert isinstance(staged, NotStaged)
    assert staged.file == 3
    assert "secret" not in staged.reason


def test_a_name_that_is_not_utf8_and_what_is_no_file_are_bad_and_told(stage: Stage, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "link.parquet").symlink_to("nowhere")
    told = {
        SourceFile(f"{tmp_path}/x\\udcff.parquet", 9, NOT_UTF8): "is not UTF-8: rename it",
        SourceFile(f"{tmp_path}/pipe.parquet", 0): "a named pipe; expected a file",
        SourceFile(f"{tmp_path}/folder.parquet", 0): "a directory; expected a file",
        SourceFile(f"{tmp_path}/link.parquet", 0): "No such file or directory",
    }
    for source, reason in told.items():
        staged = stage(0, source, None)
        assert isinstance(staged, StagedFile)
        assert staged.footer is None
        assert staged.reason.startswith(f"{source.url}: ")
        assert reason in staged.reason


def test_a_path_that_can_not_be_one_is_bad_and_told(stage: Stage) -> None:
    staged = stage(0, SourceFile("/data/\0.parquet", 9), None)
    assert isinstance(staged, StagedFile)
    assert "null byte" in staged.reason


def test_a_file_in_a_folder_that_is_not_mounted_is_waited_for(stage: Stage, tmp_path: Path) -> None:
    assert isinstance(stage(0, SourceFile(f"{tmp_path}/not/mounted.parquet", 9), None), NotStaged)


def test_a_file_that_stays_refused_while_others_are_read_is_bad_and_no_sooner(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([1]))
    write_events(tmp_path / "g.parquet", make_events([1]))
    clock = iter((0.0, 1.0, 2.0, 4.0))
    stage = replace(stage, own_faults=OwnFaults(lambda: next(clock)))
    real = os.open

    def refusing(name: object, *arguments: int) -> int:
        if str(name) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refusing)
    found = [stage(0, local(path), None) for _ in range(4)]
    assert [type(one) for one in found] == [NotStaged, NotStaged, NotStaged, StagedFile]
    assert "Permission denied" in found[-1].reason
