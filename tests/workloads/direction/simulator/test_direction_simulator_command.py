import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from common.errors import BadInputError
from icestream.cli import cli
from workloads.direction.commands.simulate import simulate


def run(*arguments: object) -> Result:
    return CliRunner().invoke(simulate, [str(argument) for argument in arguments], catch_exceptions=False)


def test_the_command_writes_the_data_set_it_reports(tmp_path: Path) -> None:
    result = run(tmp_path / "out", "--events", 12, "--cascades", 4, "--files", 2, "--seed", 5)
    rows = [row for path in (tmp_path / "out").glob("*.parquet") for row in pq.read_table(path).to_pylist()]

    assert result.exit_code == 0
    assert sum(row["enriched"] for row in rows) == 4
    num_pulses = sum(len(row["pulses"]) for row in rows)
    last = result.stdout.splitlines()[-1]
    assert f"16 events, {num_pulses:,} pulses" in last
    assert re.search(r"[\d,]+ bytes in 2 files, [\d,]+ events/s$", last)
    assert result.stderr.splitlines() == ["1 of 2 files written", "2 of 2 files written"]


def test_the_workload_selects_the_command(tmp_path: Path) -> None:
    arguments = ["simulate", str(tmp_path / "out"), "--workload", "direction", "--events", "3", "--files", "1"]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)

    assert result.exit_code == 0
    assert pq.read_table(tmp_path / "out" / "events_00000.parquet").num_rows == 3


def test_the_contests_layout_has_the_array_and_the_bright_events_asked_for(tmp_path: Path) -> None:
    run(tmp_path / "out", "--events", 2, "--files", 1, "--bright", 1, "--layout", "kaggle", "--array", "hex")
    meta = pq.read_table(tmp_path / "out/train_meta.parquet")
    counts = [row["last_pulse_index"] - row["first_pulse_index"] + 1 for row in meta.to_pylist()]

    assert len(counts) == 3
    assert max(counts) > 2000
    assert len((tmp_path / "out/sensor_geometry.csv").read_text().splitlines()) == 5461


def test_force_replaces_an_earlier_data_set(tmp_path: Path) -> None:
    run(tmp_path / "out", "--events", 4, "--files", 2)
    with pytest.raises(BadInputError, match="--force"):
        run(tmp_path / "out", "--events", 3, "--files", 1)
    run(tmp_path / "out", "--events", 3, "--files", 1, "--force")

    assert [path.name for path in (tmp_path / "out").glob("*.parquet")] == ["events_00000.parquet"]


@pytest.mark.parametrize(("option", "known"), [("--layout", "kaggle"), ("--array", "icecube")])
def test_an_unknown_choice_is_a_usage_error_that_names_the_known_ones(tmp_path: Path, option: str, known: str) -> None:
    result = run(tmp_path / "out", option, "hdf5")

    assert result.exit_code == 2
    assert known in result.stderr


def test_help_has_an_example_and_says_that_it_is_a_toy() -> None:
    text = run("--help").stdout

    assert "icestream simulate demo --workload direction" in text
    assert "A toy" in text
