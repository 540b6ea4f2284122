import re

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from common.errors import BadInputError
from workloads.muons.commands.simulate import simulate


def run(*arguments):
    return CliRunner().invoke(simulate, [str(argument) for argument in arguments], catch_exceptions=False)


def test_the_command_writes_the_data_set_it_reports(tmp_path):
    result = run(tmp_path / "out", "--preset", "flat", "--events", 1000, "--files", 4, "--seed", 5)
    table = pq.read_table(tmp_path / "out")

    assert result.exit_code == 0
    num_muons = sum(len(row) for row in table["muons"].to_pylist())
    last = result.stdout.splitlines()[-1]
    assert f"1,000 events, {num_muons:,} muons" in last
    assert re.search(r"[\d,]+ bytes in 4 files, [\d,]+ events/s$", last)


def test_without_a_terminal_progress_is_plain_lines_on_stderr(tmp_path):
    result = run(tmp_path / "out", "--events", 100, "--files", 20)

    assert result.stderr.splitlines() == [f"{done} of 20 files written" for done in range(2, 21, 2)]


def test_showers_share_an_id_over_the_given_number_of_depths(tmp_path):
    run(tmp_path / "out", "--events", 200, "--files", 2, "--showers", 10, "--depth-kind", "slant")
    table = pq.read_table(tmp_path / "out")

    assert len(set(zip(*(table[name].to_pylist() for name in table.column_names[:2]), strict=True))) == 20
    assert max(row[3] for row in table["primary"].to_pylist()) > 2800.0


def test_force_replaces_an_earlier_data_set(tmp_path):
    run(tmp_path / "out", "--events", 100, "--files", 2)
    with pytest.raises(BadInputError, match="--force"):
        run(tmp_path / "out", "--events", 50, "--files", 1)
    run(tmp_path / "out", "--events", 50, "--files", 1, "--force")

    assert pq.read_table(tmp_path / "out").num_rows == 50


def test_an_unknown_preset_is_a_usage_error_that_names_the_known_ones(tmp_path):
    result = run(tmp_path / "out", "--preset", "mupage")

    assert result.exit_code == 2
    assert "corsika" in result.stderr


def test_help_has_an_example_and_says_that_it_is_a_toy():
    text = run("--help").stdout

    assert "icestream simulate demo-data --preset bench" in text
    assert "A toy" in text
