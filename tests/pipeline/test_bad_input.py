"""Promise 7: what is wrong is named in one line, and the run goes on without it, or ends with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from muon_files import make_events, make_table, write_events
from runs import COUNTING, Processes, settings
from showers import EVENTS_PER_FILE, ROW_GROUP_EVENTS, Showers

import icestream

BAD_ROW = 3 * ROW_GROUP_EVENTS + 7
"""In row group 3."""


def with_value(table: pa.Table, column: str, value: object) -> pa.Table:
    """The table with another value in BAD_ROW."""
    values = table[column].to_pylist()
    values[BAD_ROW] = value
    index = table.schema.get_field_index(column)
    return table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))


def write_truncated(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path)
    path.write_bytes(path.read_bytes()[:-1000])


def assert_refused(processes: Processes, expected: str, *arguments: str) -> None:
    """The command ends with exit code 2 and one line that says why, and nobody shows a traceback."""
    exit_code, output = processes.run("run", *arguments)
    assert exit_code == 2, processes.report()
    errors = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert expected in errors[0]
    assert output.splitlines()[-1] == errors[0]
    assert "Traceback" not in output + "".join(processes.log(name) for name in ("fetcher", "decoder-0", "trainer"))


def test_a_path_that_is_not_there_is_refused(processes: Processes, tmp_path: Path) -> None:
    assert_refused(processes, f"{tmp_path}/none: no such file or directory", "-i", f"{tmp_path}/none")


def test_a_glob_without_a_match_is_refused(processes: Processes, tmp_path: Path) -> None:
    assert_refused(processes, f"{tmp_path}/*.parquet: no file matches this glob", "-i", f"{tmp_path}/*.parquet")


def test_a_directory_without_parquet_is_refused(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    expected = f"{tmp_path}/data: the directory holds no file with one of .parquet"
    assert_refused(processes, expected, "-i", str(tmp_path / "data"))


def test_no_input_at_all_is_refused(processes: Processes) -> None:
    assert_refused(processes, "no input given, and none stored")


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("stream.batch_event=5", "unknown configuration key 'stream.batch_event'; did you mean 'stream.batch_events'?"),
        ("stream.batch_events=0", "stream.batch_events = 0: "),
        (
            "stream.slot_mib=0.25",
            "stream.slot_mib = 0.25 holds 262144 bytes, but one event of 65536 particles needs",
        ),
        (
            "stream.slots=100000000",
            "an arena of stream.slots = 100000000 × stream.slot_mib = 1 (97656.25 GiB) does not fit into memory",
        ),
        (
            "stream.max_particles_per_event=70000",
            "stream.max_particles_per_event = 70000 is larger than stream.max_particles = 65536",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_to_change(
    processes: Processes, showers: Showers, assignment: str, expected: str
) -> None:
    assert_refused(processes, expected, *showers.input, *settings(*COUNTING, assignment))


def test_a_run_without_end_of_which_no_event_can_be_trained_ends_with_the_reason(
    processes: Processes, tmp_path: Path
) -> None:
    path = write_events(tmp_path / "large.parquet", make_events([3, 4, 5, 3]))
    only_outliers = settings(*COUNTING, "stream.max_particles_per_event=2", "epochs=0")
    assert_refused(processes, "no event of a whole epoch can be trained", "-i", str(path), *only_outliers)


def test_an_unknown_key_in_a_file_or_the_environment_is_refused(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text("[stream]\nslotz = 3\n")
    expected = "unknown configuration key 'stream.slotz'; did you mean 'stream.slots'?"
    assert_refused(processes, expected, *showers.input, "-c", str(toml))
    exit_code, output = processes.run("run", *showers.input, environment={"ICESTREAM_STREAM__SLOTZ": "3"})
    assert exit_code == 2
    assert "environment variable ICESTREAM_STREAM__SLOTZ" in output
    assert "did you mean 'stream.slots'?" in output


def test_a_truncated_file_alone_is_refused(processes: Processes, showers: Showers, tmp_path: Path) -> None:
    path = tmp_path / "truncated.parquet"
    write_truncated(path, showers.tables[0])
    assert_refused(
        processes, f"no file is usable: {path}: truncated, or not Parquet", "-i", str(path), *settings(*COUNTING)
    )


def test_strict_stops_at_the_first_bad_file(processes: Processes, showers: Showers, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    showers.write(folder)
    write_truncated(folder / "truncated.parquet", showers.tables[0])
    expected = f"{folder}/truncated.parquet: truncated, or not Parquet"
    assert_refused(processes, expected, "-i", str(folder), "--strict", *settings(*COUNTING))


def test_strict_stops_at_the_first_invalid_event(processes: Processes, showers: Showers, tmp_path: Path) -> None:
    path = tmp_path / "nan.parquet"
    table = with_value(showers.tables[0], "muons", [[float("nan"), 0.0, 0.0]])
    pq.write_table(table, path, row_group_size=ROW_GROUP_EVENTS)
    expected = "1 event: column 'muons', energy_gev: expected a finite number; e.g. "
    assert_refused(processes, expected, "-i", str(path), "--strict", *settings(*COUNTING))


def test_more_bad_files_than_the_failure_budget_stop_the_run(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    showers.write(folder)
    for index in range(2):
        write_truncated(folder / f"truncated_{index}.parquet", showers.tables[0])
    expected = "2 bad files, fetcher.max_bad_files = 1 allows 1; the newest: "
    assert_refused(processes, expected, "-i", str(folder), *settings(*COUNTING, "fetcher.max_bad_files=1"))


def test_no_name_of_a_bad_file_or_column_steers_the_terminal_or_stands_raw_in_a_log(
    processes: Processes, tmp_path: Path
) -> None:
    trick = "\x1b]52;c;cm0gLXJmIH4=\x07\x9b2J\u202e"
    path = tmp_path / "data" / f"a{trick}.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({f"column{trick}": [1]}), path)
    exit_code, output = processes.run("run", "-i", str(path.parent), *settings(*COUNTING))
    assert exit_code == 2
    assert "is missing; the file has column" in output
    texts = [output, *(processes.log(name) for name in ("fetcher", "decoder-0", "trainer"))]
    assert not any(sign in text for sign in "\x1b\x07\x9b\u202e" for text in texts)


@pytest.mark.slow
def test_bad_files_and_events_among_good_ones_are_left_out_named_and_counted(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    table = showers.tables[0]
    primary = table["primary"].to_pylist()[BAD_ROW]
    muons = [[1.0, 2.0, 3.0], [1.0, 2.0]]
    bad_rows = {
        "inner_length": ("muons", muons, "a list has 2 numbers"),
        "nan": ("primary", [float("nan"), *primary[1:]], "energy_gev is nan"),
        "muon": ("muons", [[float("nan"), 0.0, 0.0]], "energy_gev is nan"),
        "null": ("primary", None, "the value is null"),
    }
    for name, (column, value, _) in bad_rows.items():
        bad_table = with_value(table, column, value)
        pq.write_table(bad_table, folder / f"{name}.parquet", row_group_size=ROW_GROUP_EVENTS)
    pq.write_table(table, folder / "good.parquet", row_group_size=ROW_GROUP_EVENTS)
    pq.write_table(table.drop_columns(["primary"]), folder / "no_primary.parquet")
    write_truncated(folder / "truncated.parquet", table)

    summary = processes.train("-i", str(folder), *settings(*COUNTING))

    num_readable = 6  # nobody can tell how many events the truncated file had
    summary.assert_read(num_readable * EVENTS_PER_FILE)
    assert (summary["events_quarantined"], summary["events_invalid"]) == (EVENTS_PER_FILE, len(bad_rows))
    assert processes.fetcher.files_bad == 2
    reasons = {Path(reason.partition(":")[0]).stem: reason for reason in summary["quarantined"]}
    assert len(reasons) == len(summary["quarantined"]) == 2
    assert len(summary["invalid"]) == len(bad_rows), "one line a rule"
    for name, (_, _, expected) in bad_rows.items():
        place = f"{folder}/{name}.parquet: row group 3, row {BAD_ROW} of the file: {expected}"
        assert sum(place in line for line in summary["invalid"]) == 1
    assert "invalid, set aside alone: 1 event: " in processes.log("fetcher")
    stored = pa.concat_tables(
        [
            pq.read_table(path).select(["source_file", "source_row"])
            for path in processes.run_dir.glob("invalid/*.parquet")
        ]
    )
    assert sorted(stored["source_file"].to_pylist()) == sorted(f"{folder}/{name}.parquet" for name in bad_rows)
    assert set(stored["source_row"].to_pylist()) == {BAD_ROW}
    assert (
        "column 'primary' is missing; the file has primary_major_id, primary_minor_id, muons" in reasons["no_primary"]
    )
    assert "truncated, or not Parquet" in reasons["truncated"]
    assert all("\n" not in reason for reason in reasons.values())


@pytest.mark.slow
def test_a_run_with_nothing_to_train_on_is_told_so(processes: Processes, showers: Showers, tmp_path: Path) -> None:
    path = tmp_path / "nan.parquet"
    table = showers.tables[0]
    index = table.schema.get_field_index("primary")
    primaries = pa.array([[float("nan")] * 4] * len(table), table.schema.field(index).type)
    pq.write_table(table.set_column(index, table.schema.field(index), primaries), path)
    assert_refused(processes, "nothing to train on: all ", "-i", str(path), *settings(*COUNTING))
    log = processes.log("fetcher")
    assert f"quarantined: {path}: row group 0: {len(table):,} of its {len(table):,} events are invalid" in log
    assert "its columns are probably not what their names say" in log


def test_an_invalid_event_is_named_in_python_too(tmp_path: Path) -> None:
    table = make_table(make_events([2] * 4 * ROW_GROUP_EVENTS))
    primary = list(table["primary"][BAD_ROW].as_py())
    primary[0] = float("nan")
    (tmp_path / "data").mkdir()
    pq.write_table(with_value(table, "primary", primary), tmp_path / "data/one.parquet")
    with icestream.stream(str(tmp_path / "data"), batch_events=64) as stream:
        handed_out = sum(len(batch) for batch in stream)
        assert handed_out == table.num_rows - 1
        (line,) = stream.set_aside
    assert line.startswith("invalid: 1 event: column 'primary', energy_gev: expected ")
    assert f"one.parquet: row group 0, row {BAD_ROW} of the file: energy_gev is nan" in line
