"""`icestream tensorboard RUN`: what TensorBoard is started with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from icestream.cli import cli


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    commands: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda path, command: commands.append(command))
    return commands


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        folder = tmp_path / "runs" / name / "tensorboard" / "2026-11-21T12-00-05"
        folder.mkdir(parents=True)
        (folder / "events.out.tfevents.1.host.1.0").touch()
    return tmp_path / "runs"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["tensorboard", *map(str, arguments)], catch_exceptions=True)


def test_a_run_is_shown_on_this_machine_only_and_the_chart_of_losses_is_named(
    runs: Path, started: list[list[str]]
) -> None:
    for words in ([], ["show"]):
        result = call(*words, runs / "a", "--port", "6007")
        assert result.exit_code == 0, result.output
        assert "http://localhost:6007/#custom_scalars" in result.output
        expected = ["--logdir", str(runs / "a"), "--host", "127.0.0.1", "--port", "6007"]
        assert started.pop() == [sys.executable, "-P", "-m", "tensorboard.main", *expected]


def test_several_runs_are_shown_under_their_paths(runs: Path, started: list[list[str]]) -> None:
    assert call(runs / "a", runs / "b").exit_code == 0
    (command,) = started
    spec = command[command.index("--logdir_spec") + 1]
    assert spec == f"{runs / 'a'}:{runs / 'a'},{runs / 'b'}:{runs / 'b'}"


def test_a_place_without_event_files_is_named_and_nothing_is_started(tmp_path: Path, started: list[list[str]]) -> None:
    result = call(tmp_path)
    assert "no TensorBoard files" in str(result.exception)
    assert "no such directory" in str(call(tmp_path / "typo").exception)
    assert started == []
