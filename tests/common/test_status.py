from __future__ import annotations

import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from common.status import STATUS_FOLDER, Counters, FetcherStatus, TrainerStatus, read_status, write_status


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


def test_counters_add_up_when_every_event_has_one_fate() -> None:
    fates = {"events_trained": 5, "events_outlier": 1, "events_empty": 2, "events_quarantined": 3}
    assert Counters(events_read=11, **fates).adds_up()
    assert not Counters(events_read=12, **fates).adds_up()
    for name in fates:
        assert not Counters(events_read=11, **(fates | {name: 0})).adds_up()


def test_a_status_is_immutable() -> None:
    with pytest.raises(ValidationError):
        Counters().events_read = 1  # type: ignore[misc]
