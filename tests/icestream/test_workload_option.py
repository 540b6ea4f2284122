"""`--workload` of a workload's verb."""

from __future__ import annotations

from pathlib import Path

import pytest
from muon_files import make_events, write_events

from common.errors import BadInputError
from icestream.cli import without_workload, workload_of_run
from icestream.reading.workload import load_run_config


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a", "--workload", "muons", "b"], ("muons", ["a", "b"])),
        (["--workload=muons"], ("muons", [])),
        (["--", "--workload=muons"], (None, ["--", "--workload=muons"])),
        (["--workload", "muons", "--", "--workload"], ("muons", ["--", "--workload"])),
    ],
)
def test_it_is_an_option_before_two_dashes_only(arguments: list[str], expected: tuple[str | None, list[str]]) -> None:
    assert without_workload(arguments) == expected


def test_a_run_directory_or_its_checkpoint_shows_the_workload(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "best.pt").touch()
    (tmp_path / "config.json").write_text('{"workload": "direction"}')
    assert workload_of_run([str(tmp_path), "-i", "x"]) == "direction"
    assert workload_of_run(["-i", "x", str(tmp_path / "checkpoints" / "best.pt")]) == "direction"


def test_neither_options_nor_data_with_a_file_of_that_name_hide_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("run", '{"workload": "direction"}'), ("other", '{"workload": "muons"}'), ("data", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    monkeypatch.chdir(tmp_path / "other")
    assert workload_of_run(["--events", "5", "-i", "../data", "../run"]) == "direction"


@pytest.mark.parametrize("text", ["", "[]", '{"workload": 3}', "\udc80", "[" * 200_000])
def test_a_damaged_configuration_shows_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    assert workload_of_run([str(tmp_path), "a\0b"]) is None


def test_a_model_of_another_workload_than_the_files_is_refused_with_the_models_that_fit(tmp_path: Path) -> None:
    write_events(tmp_path / "a.parquet", make_events([3, 4]))
    flags = {"input": (str(tmp_path),), "trainer.model": "sets"}
    words = (
        r"a\.parquet has the columns of the workload muons, but this run is of the workload direction \(model sets\)"
    )
    with pytest.raises(BadInputError, match=words + r": use a model of muons \(wgan, likelihood\)"):
        load_run_config({}, toml=None, assignments=(), flags=flags)
    assert load_run_config({}, toml=None, assignments=(), flags=flags | {"trainer.model": "wgan"}).workload == "muons"
