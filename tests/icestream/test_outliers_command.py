"""`icestream outliers compact`: merge of the files that decoders write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from muon_files import make_events, make_table, write_events

from common.config import StreamConfig
from common.errors import BadInputError
from common.files.by_content import read_footer
from common.files.parquet.reader import ParquetReader
from common.locks import RunLock, RunPart, locked
from common.messages import Part, Unit
from common.plan import SlotCapacity
from icestream.commands.outliers import Compacted, common_schema, compact, outliers, read_batches
from services.decoder.decode import Decode
from workloads.muons.columns import MUONS


def unit_path(folder: Path, k: int) -> Path:
    return folder / f"unit-{k:010d}-ab.parquet"


def shard_names(*ks: int) -> list[str]:
    return [f"shard-{k:010d}-ab.parquet" for k in ks]


def outlier_table(k: int, counts: Sequence[int], number: pa.DataType | None = None) -> pa.Table:
    """One event of ``counts[i]`` particles each; ``source_file`` tells the unit, ``source_row`` the event."""
    table = make_table(make_events(counts, first=1000 * k), number=number)
    table = table.append_column("source_file", pa.array([f"file of unit {k}"] * len(counts)))
    table = table.append_column("source_row", pa.array(range(len(counts)), pa.int64()))
    return table.append_column("num_particles", pa.array(counts, pa.int64()))


def write_unit(folder: Path, k: int, counts: Sequence[int]) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(outlier_table(k, counts), unit_path(folder, k))
    return unit_path(folder, k)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """All events in all files of the folder, as an input would take them: files in order of name."""
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------ merge


def merge(folder: Path, shard_bytes: int = 256 << 20) -> Compacted:
    return compact(folder, shard_bytes=shard_bytes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve unit files, of k = 0, 3, 6, …"""
    folder = tmp_path / "outliers"
    for k in range(0, 36, 3):
        write_unit(folder, k, [5 + k, 7, 9])
    return folder


def test_shards_hold_every_event_whole_and_in_order_of_k(folder: Path) -> None:
    before = rows_of(folder)
    (folder / "shard-g7.part").write_bytes(b"half of a killed one")
    mine = folder / "unit-mine.parquet"
    mine.touch()
    assert merge(folder).events == 36
    mine.unlink()
    assert names(folder) == shard_names(0)
    assert rows_of(folder) == before
    write_unit(folder, 1, [4])
    write_unit(folder, 6, [11, 7, 9])  # decoded again by a resumed run
    assert merge(folder) == Compacted(
        unit_files=1,
        bytes_read=write_unit(folder, 1, [4]).stat().st_size,
        files_removed=2,
        shards_written=1,
        bytes_written=(folder / shard_names(1)[0]).stat().st_size,
        events=1,
    )
    merge(folder)
    assert names(folder) == shard_names(0, 1)
    assert len(rows_of(folder)) == 37


def test_shards_are_closed_at_their_size_and_no_unit_is_in_two(tmp_path: Path) -> None:
    folder = tmp_path / "outliers"
    rng = np.random.default_rng(0)
    for k in range(9):
        table = outlier_table(k, [5] * 10)
        noise = pa.array(rng.bytes(24_000) for _ in range(10))  # what can't be compressed
        pq.write_table(table.append_column("noise", noise), write_unit(folder, k, [1]))
    before = rows_of(folder)
    assert merge(folder, 700_000).shards_written == 3
    assert names(folder) == shard_names(0, 3, 6)
    assert rows_of(folder) == before


def test_files_of_other_types_are_merged_without_loss(folder: Path) -> None:
    table = outlier_table(100, [3, 4], number=pa.float64())
    table = table.append_column("weight", pa.array([0.1, 0.2]))
    pq.write_table(table, unit_path(folder, 100))
    merge(folder)
    (path,) = folder.iterdir()
    merged = pq.read_table(path)
    assert merged.schema.field("primary").type.value_type == pa.float64()
    assert merged.to_pylist()[-2:] == table.to_pylist()
    assert merged["weight"].to_pylist()[:36] == [None] * 36


def test_files_that_can_not_be_merged_are_named_and_nothing_is_lost(folder: Path) -> None:
    before = names(folder)

    def refused(k: int, why: str) -> None:
        with pytest.raises(BadInputError, match=rf"unit-0000000{k:03}-ab\.parquet: {why}"):
            merge(folder)
        unit_path(folder, k).unlink()

    pq.write_table(outlier_table(100, [3]).set_column(5, "source_row", pa.array(["three"])), unit_path(folder, 100))
    refused(100, r"no type holds a column of this file .*source_row has incompatible types: int64 vs string")
    odd = pa.array([2**53 + 1], pa.int64())
    pq.write_table(outlier_table(100, [3]).append_column("weight", odd), unit_path(folder, 100))
    pq.write_table(outlier_table(101, [3]).append_column("weight", pa.array([0.5])), unit_path(folder, 101))
    refused(100, r"column 'weight': no type holds all its values")
    unit_path(folder, 101).write_bytes(b"half a file")
    refused(101, "truncated, or not Parquet")
    assert names(folder) == before
    pq.write_table(outlier_table(1, [2]), folder / shard_names(1)[0])
    with pytest.raises(BadInputError, match="named like a shard, but no compaction wrote it"):
        merge(folder)


def test_shards_of_what_a_decoder_wrote_are_an_input_again(tmp_path: Path) -> None:
    stream = StreamConfig(max_particles=100, max_particles_per_event=5, slot_mib=0.25)
    reader = ParquetReader(MUONS)
    decode = Decode(MUONS, stream, 0, tmp_path, reader)
    for k in range(3):
        events = make_events([2, 9, 0, 5, 7, 1], first=100 * k)
        path = write_events(tmp_path / f"{k}.parquet", events)
        unit = Unit(k=k, epoch=0, block=0, block_first_unit=0, parts=(Part(k, str(path), 0, 0, 6, 1 << 10, 0),))
        decode(unit, np.zeros(stream.slot_bytes, np.uint8))
    merge(tmp_path / "outliers")
    (path,) = (tmp_path / "outliers").iterdir()
    stream = stream.model_copy(update={"max_particles_per_event": 50})
    footer = read_footer(path, MUONS, stream, SlotCapacity(MUONS, stream))
    (group,) = footer.row_groups
    assert (group.rows, group.particles) == (6, 48)
    (rows,) = reader.read([Part(0, str(path), 0, 0, 6, 48, 0)])
    reader.close()
    assert rows.counts.tolist() == [9, 7] * 3
    assert rows.event_columns["primary_id"][:, 0].tolist() == [1, 4, 101, 104, 201, 204]


def test_two_compactions_do_not_meet(folder: Path) -> None:
    with locked(folder / "compaction.lock", lambda: False), pytest.raises(BadInputError, match="another compaction"):
        merge(folder)
    merge(folder)


def test_large_events_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.commands.outliers._BATCH_BYTES", 40_000)
    sizes = [batch.num_rows for batch in read_batches(write_unit(tmp_path, 1, [2_000] * 8))]  # 24 kB each
    assert sum(sizes) == 8
    assert max(sizes) <= 4


# ------------------------------------------------------------------ kill -9

KILLED_AT_EACH_STEP = """
import os, pathlib, shutil, signal, sys
import pyarrow.parquet as pq
from icestream.commands.outliers import compact

template, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
countdown = 0

def dies(function):
    def step(*arguments, **keywords):
        global countdown
        countdown -= 1
        if countdown == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **keywords)
    return step

for module, name in (
    (os, "fsync"), (os, "replace"), (os, "unlink"), (os, "rename"),
    (pq.ParquetWriter, "write_table"), (pq.ParquetWriter, "close"),
):
    setattr(module, name, dies(getattr(module, name)))

step = 0
while True:
    step += 1
    copy = folder / f"killed-at-{step:03d}"
    shutil.copytree(template, copy)
    pid = os.fork()  # nothing of pyarrow has run yet: there are no threads
    if pid == 0:
        countdown = step
        compact(copy, shard_bytes=int(sys.argv[3]))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        sys.exit(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
"""


@pytest.mark.process
def test_killed_at_any_step_and_run_again_nothing_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    template, copies = tmp_path / "template", tmp_path / "copies"
    copies.mkdir()
    for k in range(3):
        write_unit(template, k, [300, 200])
    again = unit_path(template, 2).read_bytes()
    merge(template, 12_000)
    assert len(names(template)) >= 2, "several shards"
    for k in range(3, 6):
        write_unit(template, k, [300, 200])
    unit_path(template, 2).write_bytes(again)  # decoded again
    arguments = [sys.executable, "-c", KILLED_AT_EACH_STEP, str(template), str(copies), "12000"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    folders = sorted(copies.iterdir())
    assert len(folders) > 10
    expected = [(f"file of unit {k}", i, number) for k in range(6) for i, number in enumerate([300, 200])]
    for folder in folders:
        if folder != folders[-1]:  # the one that no step killed
            merge(folder, 12_000)
        found = [(row["source_file"], row["source_row"], row["num_particles"]) for row in rows_of(folder)]
        assert sorted(found) == expected
        assert all(name.startswith("shard-") for name in names(folder))


# ------------------------------------------------------------------ schema


EITHER_WAY = [
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
    (pa.list_(pa.list_(pa.float32())), pa.large_list(pa.list_(pa.float32())), pa.large_list(pa.list_(pa.float32()))),
    (pa.int32(), pa.float64(), pa.float64()),
    (pa.list_(pa.float32()), pa.float32(), None),
]


def file_of(path: Path, **columns: pa.DataType) -> Path:
    pq.write_table(pa.schema(list(columns.items())).empty_table(), path)
    return path


@pytest.mark.parametrize(("one", "other", "both"), EITHER_WAY)
def test_a_type_is_widened_and_columns_are_in_order_of_appearance(
    tmp_path: Path, one: pa.DataType, other: pa.DataType, both: pa.DataType | None
) -> None:
    files = [file_of(tmp_path / "a", y=pa.int64(), x=one), file_of(tmp_path / "b", z=pa.int8(), x=other)]
    if both is None:
        with pytest.raises(BadInputError, match="b: no type holds a column of this file"):
            common_schema(files)
    else:
        assert common_schema(files) == pa.schema([("y", pa.int64()), ("x", both), ("z", pa.int8())])
        assert common_schema(files[::-1]).field("x").type == both


# ------------------------------------------------------------------ command


def run(*arguments: object) -> Result:
    command = ["compact", *(str(argument) for argument in arguments)]
    return CliRunner().invoke(outliers, command, catch_exceptions=False)


def test_the_command_says_what_it_merged(folder: Path) -> None:
    units = {path: path.read_bytes() for path in folder.iterdir()}
    assert "12 unit files, 0.0 MiB, merged into 1 shards, 0.0 MiB, 36 events; 12 files removed" in run(folder).stdout
    assert run(folder).stdout == f"{folder}: nothing to merge\n"
    for path, content in units.items():  # as a kill leaves them before they are removed
        path.write_bytes(content)
    assert run(folder).stdout == f"{folder}: nothing to merge; 12 files removed\n"


@pytest.fixture
def sharded_dir(tmp_path: Path) -> Path:
    """Three shards, of which one has no outliers, and outliers of a plan without shards before."""
    (tmp_path / "config.json").write_text("{}")
    for folder, units in (("outliers", 1), ("shards/000/outliers", 2), ("shards/002/outliers", 3)):
        (tmp_path / folder).mkdir(parents=True)
        for k in range(units):
            write_unit(tmp_path / folder, k, [9, 8])
    (tmp_path / "shards" / "001" / "status").mkdir(parents=True)
    return tmp_path


def test_the_directory_of_a_run_in_shards_stands_for_all_of_them(sharded_dir: Path) -> None:
    lines = run(sharded_dir).stdout.splitlines()
    found = [(line.partition(": ")[0], line.partition(": ")[2].partition(" unit files")[0]) for line in lines]
    inside = ("outliers", "shards/000/outliers", "shards/002/outliers")
    assert found == [(str(sharded_dir / name), str(number)) for name, number in zip(inside, (1, 2, 3), strict=True)]
    assert [len(rows_of(sharded_dir / name)) for name in inside] == [2, 4, 6]
    assert all(names(sharded_dir / name) == shard_names(0) for name in inside)
    assert len(run(sharded_dir / "shards" / "002").stdout.splitlines()) == 1


@pytest.mark.parametrize("inner", ["", "shards/000", "shards/000/outliers"])
@pytest.mark.parametrize(("of", "part"), [("", "run"), ("", "trainer"), ("shards/000", "fetcher")])
def test_the_outliers_of_a_shard_of_an_active_run_are_left_alone(
    sharded_dir: Path, inner: str, of: str, part: RunPart
) -> None:
    with RunLock(sharded_dir / of, part, part), pytest.raises(BadInputError, match="the run is in use by"):
        run(sharded_dir / inner)
    assert unit_path(sharded_dir / "shards" / "000" / "outliers", 1).exists()
