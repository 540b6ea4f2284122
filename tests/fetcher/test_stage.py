"""One file: staged, bad, gone, or not to be had this time."""

from __future__ import annotations

from pathlib import Path

import pytest
from muon_files import make_events, write_events

from common.config import StreamConfig
from common.errors import BadInputError, TransientError
from common.schema import MUONS
from services.fetcher import stage as module
from services.fetcher.plan import Footer, RowGroup, SlotCapacity, SourceFile, StagedFile
from services.fetcher.stage import NotStaged, Stage
from services.fetcher.transfer import WrongSizeError

STREAM = StreamConfig()
REMOTE = SourceFile("https://user:secret@host/f.parquet?token=secret", 7)
FOOTER = Footer((RowGroup(5, 9),))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "cache", MUONS, STREAM, SlotCapacity(MUONS, STREAM))


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fetch(source: SourceFile, path: Path) -> None:
        raise error

    monkeypatch.setattr(module, "fetch", fetch)


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


def test_what_may_pass_says_nothing_of_the_file(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, TransientError("the server does not answer"))
    staged = stage(3, REMOTE, None)
    assert isinstance(staged, NotStaged)
    assert staged.file == 3
    assert "the server does not answer" in staged.reason
    assert "secret" not in staged.reason
    assert isinstance(stage(3, REMOTE, FOOTER), NotStaged), "also if its footer is known"


@pytest.mark.parametrize("error", [BadInputError("it does not exist any more"), WrongSizeError("9 bytes arrived")])
def test_a_file_that_can_not_be_had_is_bad(stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    fail_with(monkeypatch, error)
    staged = stage(0, REMOTE, None)
    assert isinstance(staged, StagedFile)
    assert staged.footer is None
    assert str(error) in staged.reason
    assert "secret" not in staged.reason


def test_a_file_that_was_planned_and_is_gone_keeps_its_units(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, BadInputError("it does not exist any more"))
    staged = stage(0, REMOTE, FOOTER)
    assert isinstance(staged, StagedFile)
    assert (staged.footer, staged.path) == (FOOTER, "")
    assert "host/f.parquet" in staged.remote
    assert "secret" not in staged.remote
