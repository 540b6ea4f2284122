"""A directory with everything odd that can lie in one: the run ends, what is good is trained once, the rest is named."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import FAULTY_ICESTREAM, SMALL_STREAM, Processes, settings
from showers import EVENTS_PER_FILE, ROW_GROUP_EVENTS, Showers

from common.schema import MUONS

NOBODY = 65534


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
    return {
        "dangling": "No such file",
        "loop": "Too many levels of symbolic links",
        "pipe": "a named pipe; expected a file",
        "empty_folder": "a directory; expected a file",
        "empty": "the file is empty",
        "name_\\udcff": "is not UTF-8: rename it",
        "escapes": "is missing; the file has",
        # What a unit can't hold is an outlier, or refused: never the end of a process.
        "bomb": "",
    }


@pytest.mark.slow
def test_a_run_over_everything_odd_trains_what_is_good_and_names_the_rest(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    odd = fill(folder, showers)
    good = showers.write(folder)
    is_root = os.geteuid() == 0
    if not is_root:  # permissions don't bind root
        odd["unreadable"] = "Permission denied"

    summary = processes.train("-i", str(folder), *settings(*SMALL_STREAM, "fetcher.max_bad_files=20"))

    reasons = {reason.removeprefix(f"{folder}/").partition(".parquet")[0]: reason for reason in summary["quarantined"]}
    is_bomb_outlier = "bomb" not in reasons
    expected = {name: text for name, text in odd.items() if name != "bomb" or not is_bomb_outlier}
    assert reasons.keys() == expected.keys()
    for name, text in expected.items():
        assert text in reasons[name], reasons[name]
    num_good = len(good) + is_root
    assert summary["adds_up"]
    assert summary["events_trained"] + summary["events_outlier"] + summary["events_empty"] == (
        num_good * EVENTS_PER_FILE + is_bomb_outlier
    )
    assert not any(summary["restarts"].values()), processes.report()
    assert processes.fetcher.files_bad == len(expected)
    assert not processes.fetcher.problem
    told = "".join(processes.log(name) for name in ("fetcher", "decoder-0", "trainer")) + str(summary)
    assert "Traceback" not in told
    for name in processes.run_dir.glob("*.json"):
        assert "\x1b" not in name.read_text()
