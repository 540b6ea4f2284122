"""Promise 7: what is wrong or odd is named in one line, and the run goes on without it, or ends with exit code 2."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from muon_files import make_events, make_table, write_events
from runs import COUNTING, PATIENCE_S, Processes, Summary, settings
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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "no input given, and none stored"),
        (
            ["-i", "{showers}", *settings(*COUNTING, "stream.slots=100000000")],
            "an arena of stream.slots = 100000000 × stream.slot_mib = 1 (97656.25 GiB) does not fit into memory",
        ),
        (
            ["-i", "{folder}/truncated.parquet", *settings(*COUNTING)],
            "no file is usable: {folder}/truncated.parquet: truncated, or not Parquet",
        ),
        (
            ["-i", "{showers}", "-i", "{folder}/truncated.parquet", "--strict", *settings(*COUNTING)],
            "{folder}/truncated.parquet: truncated, or not Parquet",
        ),
        (
            ["-i", "{folder}/nan.parquet", "--strict", *settings(*COUNTING)],
            "1 event: column 'muons', energy_gev: expected a finite number; e.g. ",
        ),
        (
            ["-i", "{showers}", "-i", "{folder}/trunc*", *settings(*COUNTING, "fetcher.max_bad_files=1")],
            "2 bad files, fetcher.max_bad_files = 1 allows 1; the newest: ",
        ),
    ],
    ids=["no input", "no memory", "truncated", "strict about files", "strict about events", "beyond the budget"],
)
def test_a_mistake_is_refused_with_what_to_change(
    processes: Processes, showers: Showers, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    """One for each process that may find it; the others are tested in their rooms. Nobody shows a traceback."""
    for name in ("truncated", "truncated_too"):
        write_truncated(tmp_path / f"{name}.parquet", showers.tables[0])
    nan = with_value(showers.tables[0], "muons", [[float("nan"), 0.0, 0.0]])
    pq.write_table(nan, tmp_path / "nan.parquet", row_group_size=ROW_GROUP_EVENTS)
    places = {"folder": tmp_path, "showers": showers.folder}
    exit_code, output = processes.run("run", *(one.format(**places) for one in arguments))
    assert exit_code == 2, processes.report()
    errors = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert expected.format(**places) in errors[0]
    assert output.splitlines()[-1] == errors[0]
    assert "Traceback" not in output + "".join(processes.log(name) for name in ("fetcher", "decoder-0", "trainer"))


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


# ------------------------------------------------------------------ a directory with everything odd in it

BOUND_BY_PERMISSIONS = (
    "-c",
    "import ctypes, os, sys\n"
    "for capability in (1, 2):\n"  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: root loses them with the next exec
    "    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'icestream', *sys.argv[1:]])",
)
"""`icestream`, to which permissions of files apply also if root starts it."""


def write_bomb(path: Path, table: pa.Table) -> None:
    """A few kB of Parquet: one event of four million times the same muon."""
    num = 4_000_000
    muon = pa.ListArray.from_arrays(
        pa.array(range(0, 3 * num + 1, 3), pa.int32()), pa.nulls(3 * num, pa.float32()).fill_null(1.0)
    )
    muons = pa.ListArray.from_arrays(pa.array([0, num], pa.int32()), muon)
    columns = {name: table[name].slice(0, 1).combine_chunks() for name in table.schema.names}
    columns["muons"] = muons
    pq.write_table(pa.table(columns), path, compression="zstd")
    assert path.stat().st_size < 100_000


def bad_values(primary: list[float]) -> dict[str, tuple[str, object, str]]:
    """Name of the file -> column, value of BAD_ROW and what is told of it."""
    return {
        "inner_length": ("muons", [[1.0, 2.0, 3.0], [1.0, 2.0]], "a list has 2 numbers"),
        "nan": ("primary", [float("nan"), *primary[1:]], "energy_gev is nan"),
        "muon": ("muons", [[float("nan"), 0.0, 0.0]], "energy_gev is nan"),
        "null": ("primary", None, "the value is null"),
    }


def fill(folder: Path, showers: Showers) -> dict[str, str]:
    """What is odd: name -> a part of what is told of it."""
    folder.mkdir()
    table = showers.tables[0]
    (folder / "dangling.parquet").symlink_to("nowhere.parquet")
    (folder / "loop.parquet").symlink_to("loop.parquet")
    os.mkfifo(folder / "pipe.parquet")
    (folder / "empty_folder.parquet").mkdir()
    (folder / "empty.parquet").touch()
    Path(os.fsdecode(os.fsencode(folder) + b"/name_\xff.parquet")).write_bytes(b"PAR1")
    path = folder / "unreadable.parquet"
    pq.write_table(table, path)
    path.chmod(0)
    write_bomb(folder / "bomb.parquet", table)
    escapes = "\x1b]52;c;AAAA\x07\x9b31m\u202e"
    pq.write_table(table.rename_columns([*table.schema.names[:-1], escapes]), folder / "escapes.parquet")
    primary = table["primary"].to_pylist()[BAD_ROW]
    for name, (column, value, _) in bad_values(primary).items():
        pq.write_table(with_value(table, column, value), folder / f"{name}.parquet", row_group_size=ROW_GROUP_EVENTS)
    pq.write_table(table.drop_columns(["primary"]), folder / "no_primary.parquet")
    write_truncated(folder / "truncated.parquet", table)
    return {
        "no_primary": "column 'primary' is missing; the file has primary_major_id, primary_minor_id, muons",
        "truncated": "truncated, or not Parquet",
        "dangling": "No such file",
        "loop": "Too many levels of symbolic links",
        "pipe": "a named pipe; expected a file",
        "empty_folder": "a directory; expected a file",
        "empty": "the file is empty",
        "name_\\udcff": "is not UTF-8: rename it",
        "unreadable": "Permission denied",
        "escapes": "is missing; the file has",
        # What a unit can't hold is an outlier, or refused: never the end of a process.
        "bomb": "",
    }


def named(summary: Summary, folder: Path) -> dict[str, str]:
    """Name of the file without its suffix -> why it, or a part of it, is quarantined."""
    return {reason.removeprefix(f"{folder}/").partition(".parquet")[0]: reason for reason in summary["quarantined"]}


def invalid_files(processes: Processes) -> list[Path]:
    return list(processes.run_dir.glob("invalid/*.parquet"))


def assert_undisturbed(processes: Processes) -> None:
    """No process was started again, and none showed a traceback."""
    assert not any(processes.summary()["restarts"].values()), processes.report()
    assert not processes.fetcher.problem
    assert "Traceback" not in "".join(processes.log(name) for name in ("fetcher", "decoder-0", "trainer"))


@pytest.mark.slow
def test_a_run_over_everything_odd_trains_what_is_good_and_names_the_rest(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    odd = fill(folder, showers)
    good = showers.write(folder)

    command = ["-i", str(folder), *settings(*COUNTING, "fetcher.max_bad_files=20")]
    assert processes.finish(processes.start("run", *command, program=BOUND_BY_PERMISSIONS)) == 0, processes.report()

    summary = processes.summary()
    reasons = named(summary, folder)
    is_bomb_outlier = "bomb" not in reasons
    expected = {name: text for name, text in odd.items() if name != "bomb" or not is_bomb_outlier}
    assert reasons.keys() == expected.keys()
    for name, text in expected.items():
        assert text in reasons[name], reasons[name]
    bad = bad_values([1.0] * 4)
    assert summary["adds_up"]
    assert summary["events_invalid"] == len(bad)
    assert summary["events_trained"] + summary["events_outlier"] + summary["events_empty"] == (
        (len(good) + len(bad)) * EVENTS_PER_FILE - len(bad) + is_bomb_outlier
    )
    assert processes.fetcher.files_bad == len(expected)
    assert len(summary["invalid"]) == len(bad), "one line a rule"
    for name, (_, _, told) in bad.items():
        place = f"{folder}/{name}.parquet: row group 3, row {BAD_ROW} of the file: {told}"
        assert sum(place in line for line in summary["invalid"]) == 1
    assert "invalid, set aside alone: 1 event: " in processes.log("fetcher")
    stored = [pq.read_table(path, columns=["source_file", "source_row"]) for path in invalid_files(processes)]
    sources = [str(file) for table in stored for file in table["source_file"].to_pylist()]
    assert sorted(sources) == sorted(f"{folder}/{name}.parquet" for name in bad)
    assert {row for table in stored for row in table["source_row"].to_pylist()} == {BAD_ROW}
    assert_undisturbed(processes)
    assert all(reason.isprintable() for reason in reasons.values())
    texts = [processes.started[0].output(), *(processes.log(name) for name in ("fetcher", "decoder-0", "trainer"))]
    assert not any(sign in text for sign in "\x1b\x07\x9b\u202e" for text in texts), "nothing steers the terminal"


@pytest.mark.slow
def test_files_that_are_truncated_and_replaced_while_they_are_read_lose_their_rows_and_nothing_else(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    num_good = len(showers.write(folder))
    truncated, replaced = folder / "truncated.parquet", folder / "replaced.parquet"
    for path in (truncated, replaced):
        pq.write_table(showers.tables[0], path, row_group_size=ROW_GROUP_EVENTS)
    command = ["-i", str(folder), *settings(*COUNTING, "fetcher.max_bad_files=2", "fetcher.blocks_ahead=5")]
    # No more is decoded than three slots hold, of 25 units, before the first step is made.
    run = processes.start("run", *command, environment=processes.brake(pause_s=PATIENCE_S))
    processes.wait_in(run, lambda: processes.fetcher.files_planned == num_good + 2, "the plan")
    os.truncate(truncated, 5_000)
    part = tmp_path / "new"
    part.write_bytes(b"PAR1" + os.urandom(truncated.stat().st_size) + b"PAR1")
    part.replace(replaced)
    processes.release()

    assert processes.finish(run) == 0, processes.report()
    summary = processes.summary()
    summary.assert_read((num_good + 2) * EVENTS_PER_FILE)
    assert named(summary, folder).keys() == {"truncated", "replaced"}
    lost = summary["events_quarantined"]
    assert 0 < lost <= 2 * EVENTS_PER_FILE
    assert lost % ROW_GROUP_EVENTS == 0
    assert_undisturbed(processes)


@pytest.mark.slow
def test_a_run_over_values_that_can_t_be_warns_at_once_and_in_its_summary(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    degrees = [replace(event, primary=(1000.0, 57.5, 4.0, 1500.0)) for event in make_events([2] * 40)]
    write_events(tmp_path / "data" / "degrees.parquet", degrees)

    command = ("run", "-i", str(tmp_path / "data"), *settings(*COUNTING, "stream.batch_events=4"))
    run = processes.start(*command, environment=processes.brake(pause_s=5.0))
    processes.wait_in(run, lambda: "Warning: " in run.output(), "the warning")
    processes.release()
    assert processes.finish(run) == 0, processes.report()

    (warning,) = processes.summary()["warnings"]
    assert "degrees.parquet: values that can't be: 40 of 40 of primary.zenith_rad lie outside of" in warning
    told = " ".join(run.output().split())
    assert told.index(f"Warning: {warning}") < told.index("finished after") < told.index(f"warning: {warning}")
    assert processes.log("trainer").count("values that can't be") == 1
    exit_code, view = processes.run("status", "--once")
    assert exit_code == 0
    assert "values that can't be" in " ".join(view.split())
