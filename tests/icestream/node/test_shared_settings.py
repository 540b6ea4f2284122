"""Settings of a run in its shared folder: a start that is refused leaves those that were there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from of_torchrun import of_torchrun

from common.locks import begin_attempt
from icestream.commands.node_session import NodeSession, SharedSettings
from icestream.commands.run import run
from services.config.root import Config, load_config
from services.supervisor.meeting import read_note


def config(*inputs: str, **flags: Any) -> Config:
    return load_config({}, flags={"input": inputs, **flags}, environment={})


def stored(shared: Path) -> tuple[str, ...]:
    return load_config(shared, environment={}).input


def start(shared: Path, text: str) -> SharedSettings:
    settings = SharedSettings(shared, begin_attempt(shared))
    settings.replace(config(text))
    return settings


def save(shared: Path, step: int) -> None:
    (shared / "checkpoints").mkdir(exist_ok=True)
    (shared / "checkpoints" / f"step-{step:09d}.pt").touch()


@pytest.mark.parametrize("step", [None, 0])
def test_a_first_start_that_is_refused_leaves_none(tmp_path: Path, step: int | None) -> None:
    """The workload that was detected in a mistyped input would be that of all later starts."""
    settings = start(tmp_path, "/wrong")
    assert stored(tmp_path) == ("/wrong",)
    if step is not None:
        save(tmp_path, step)  # a trainer that is stopped before its first step
    settings.put_back()
    assert not (tmp_path / "config.json").exists()


def test_a_later_start_that_is_refused_leaves_those_with_which_was_trained(tmp_path: Path) -> None:
    start(tmp_path, "/right")
    save(tmp_path, 40)
    start(tmp_path, "/wrong").put_back()
    assert stored(tmp_path) == ("/right",)
    settings = start(tmp_path, "/more")
    save(tmp_path, 43)
    settings.put_back()
    assert stored(tmp_path) == ("/more",)


def test_settings_of_a_later_attempt_stay_and_before_the_first_there_are_none(tmp_path: Path) -> None:
    SharedSettings(tmp_path, begin_attempt(tmp_path)).put_back()
    settings = start(tmp_path, "/wrong")
    start(tmp_path, "/right")
    settings.put_back()
    assert stored(tmp_path) == ("/right",)


def test_records_and_a_checkpoint_are_forgotten_until_something_is_trained(tmp_path: Path) -> None:
    """Bad files and blocks of mistyped inputs would count as those of the right ones; so would their plan."""
    folder = tmp_path / "inventory"
    folder.mkdir()
    records = {"planned-000.jsonl", "bad-001", "epochs-001"}
    for name in (*records, "files-1.jsonl"):
        (folder / name).touch()
    save(tmp_path, 0)
    kept = tmp_path / "checkpoints" / "step-000000040.pt.kept"  # somebody's own
    kept.touch()
    start(tmp_path, "/right")
    assert [path.name for path in folder.iterdir()] == ["files-1.jsonl"]
    assert list(kept.parent.iterdir()) == [kept]
    for name in records:
        (folder / name).touch()
    save(tmp_path, 40)
    start(tmp_path, "/right")
    assert {path.name for path in folder.iterdir()} == {*records, "files-1.jsonl"}
    assert (kept.parent / "step-000000040.pt").exists()


def test_a_run_that_its_fetcher_refuses_leaves_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.parquet").touch()

    def until_the_end(*_: object) -> tuple[int, str]:
        assert stored(tmp_path / "shared") == (str(tmp_path / "x.parquet"),)
        return 2, "fetcher: no file is usable"

    monkeypatch.setattr(NodeSession, "_until_the_end", until_the_end)
    assert CliRunner().invoke(run, run_node(tmp_path), env=of_torchrun()).exit_code == 2
    assert not (tmp_path / "shared" / "config.json").exists()


def test_a_list_of_other_inputs_does_not_hide_a_mistyped_one_of_which_the_others_are_told(tmp_path: Path) -> None:
    (tmp_path / "shared" / "inventory").mkdir(parents=True)
    (tmp_path / "shared" / "inventory" / "files-0123456789abcdef.jsonl").touch()
    result = CliRunner().invoke(run, run_node(tmp_path), env=of_torchrun())
    assert result.exit_code == 2
    note = read_note(tmp_path / "shared")
    assert note is not None
    assert (note.state, note.exit_code, note.port) == ("ended", 2, "1")
    assert f"Error: {note.text}\n" == result.output
    assert note.text.endswith("x.parquet: no such file or directory")
    assert not (tmp_path / "shared" / "config.json").exists()


def run_node(place: Path) -> list[str]:
    return ["-i", str(place / "x.parquet"), "--shared", str(place / "shared"), "--run-dir", str(place / "run")]
