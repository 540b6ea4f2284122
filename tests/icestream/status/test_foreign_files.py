"""Run directories of other users, with files that are none: no command that looks at a run waits for them."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from run_dirs import made_run, session

from common.errors import BadInputError
from icestream.cli import workload_of_run
from icestream.commands.logs import logs
from icestream.commands.ls import ls
from icestream.commands.status.command import status
from icestream.commands.stop import stop


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    made_run(tmp_path / "run", session(state="finished"))
    for folder in ("locks", "logs"):
        (tmp_path / "run" / folder).mkdir()
    return tmp_path / "run"


def put_a_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ["locks/run", "status/trainer.json", "status/run.json", "health.jsonl"])
@pytest.mark.parametrize("command", [status, stop])
def test_a_pipe_in_a_run_directory_is_refused_with_its_name(run_dir: Path, name: str, command: click.Command) -> None:
    put_a_pipe(run_dir / name)
    with pytest.raises(BadInputError, match=rf"{name}: a named pipe; expected a file"):
        CliRunner().invoke(command, [str(run_dir)], catch_exceptions=False)


@pytest.mark.timeout(10)
def test_a_run_directory_with_a_pipe_is_left_out_of_the_list(run_dir: Path) -> None:
    put_a_pipe(run_dir / "status/run.json")
    result = CliRunner().invoke(ls, [str(run_dir.parent)], catch_exceptions=False)
    assert result.output.startswith("no runs below")


@pytest.mark.timeout(10)
def test_a_pipe_among_the_logs_is_refused_with_its_name(run_dir: Path) -> None:
    put_a_pipe(run_dir / "logs/fetcher.log")
    with pytest.raises(BadInputError, match=r"logs/fetcher\.log: a named pipe; expected a file"):
        CliRunner().invoke(logs, [str(run_dir)], catch_exceptions=False)


@pytest.mark.timeout(10)
def test_a_pipe_in_place_of_the_configuration_names_no_workload(run_dir: Path) -> None:
    put_a_pipe(run_dir / "config.json")
    assert workload_of_run([str(run_dir)]) is None
