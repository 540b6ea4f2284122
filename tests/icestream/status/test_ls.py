"""`icestream ls` on made-up run directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from run_dirs import made_run, session

from common.errors import BadInputError
from common.file_lock import RunLock
from icestream.commands.ls import ls


def listed(*arguments: str) -> list[str]:
    result = CliRunner().invoke(ls, [*arguments])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_every_run_has_a_row_with_its_state_wherever_it_is_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a/deep").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "no-run/demo").mkdir(parents=True)
    made_run(tmp_path / "a/deep", session(state="finished", exit_code=0))
    made_run(tmp_path / "b", session())
    with RunLock(tmp_path / "b", "run", "icestream run"):
        header, *rows = listed(str(tmp_path))
    assert header.split() == ["run", "state", "model", "step", "done", "events/s", "events", "changed", "size"]
    cells = {row.split()[0]: row.split()[1:] for row in rows}
    assert cells[str(tmp_path / "a/deep")][:6] == ["finished", "muons", "wgan", "100", "100", "10,000"]
    assert cells[str(tmp_path / "b")][:6] == ["running", "muons", "wgan", "100", "50%", "200"]
    assert len(rows) == 2


def test_json_lists_the_status_of_each(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    made_run(tmp_path / "a", session())
    (found,) = json.loads("\n".join(listed(str(tmp_path), "--json")))
    assert (found["run_dir"], found["state"]) == (str(tmp_path / "a"), "killed")


def test_a_folder_without_runs_says_so_and_one_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert listed(str(tmp_path)) == [f"no runs below {tmp_path}"]
    with pytest.raises(BadInputError, match="no such folder"):
        CliRunner().invoke(ls, [str(tmp_path / "typo")], catch_exceptions=False)


def test_links_are_not_followed_so_that_a_loop_ends(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    assert listed(str(tmp_path)) == [f"no runs below {tmp_path}"]
