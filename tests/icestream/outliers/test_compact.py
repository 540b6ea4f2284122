from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from muon_files import make_events, write_events
from outlier_files import key_of, names, outlier_table, rows_of, unit_path, write_unit

from common.config import StreamConfig
from common.errors import BadInputError
from common.file_lock import RUN_PARTS, RunLock, RunPart, locked
from common.files.footers import read_footer
from common.files.parquet.reader import ParquetReader
from common.messages import Part, Unit
from common.plan import SlotCapacity
from icestream.commands.outliers.compact import Compacted, compact
from services.config.root import Config, store_config
from services.decoder.decode import Decode
from workloads.muons.columns import MUONS

MIB = 1 << 20


def merge(folder: Path, shard_bytes: int = 256 * MIB, *, keep: bool = False, dry_run: bool = False) -> Compacted:
    return compact(folder, shard_bytes=shard_bytes, keep=keep, dry_run=dry_run)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve unit files, of k = 0, 3, 6, …"""
    folder = tmp_path / "outliers"
    for k in range(0, 36, 3):
        write_unit(folder, k, [5 + k, 7, 9])
    return folder


def test_shards_hold_every_event_whole_and_in_order_of_k(folder: Path) -> None:
    before = rows_of(folder)
    done = merge(folder)
    assert names(folder) == ["shard-0000000000-0000000033-g1.parquet"]
    assert rows_of(folder) == before
    assert (done.events, done.shards_written, done.files_removed) == (36, 1, 12)


def test_shards_are_closed_at_their_size_and_no_unit_is_in_two(tmp_path: Path) -> None:
    folder = tmp_path / "outliers"
    rng = np.random.default_rng(0)
    for k in range(9):
        table = outlier_table(k, [5] * 10)
        noise = pa.array(rng.bytes(24_000) for _ in range(10))  # what can't be compressed
        pq.write_table(table.append_column("noise", noise), write_unit(folder, k, [1]))
    before = rows_of(folder)
    done = merge(folder, 700_000)
    assert done.shards_written == 3
    assert names(folder) == [f"shard-{k:010d}-{k + 2:010d}-g1.parquet" for k in (0, 3, 6)]
    assert rows_of(folder) == before


def test_a_second_time_there_is_nothing_to_do(folder: Path) -> None:
    merge(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    done = merge(folder)
    assert (done.shards_written, done.files_removed) == (0, 0)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_what_a_killed_one_left_half_written_is_removed(folder: Path) -> None:
    (folder / "shard-g7.part").write_bytes(b"half")
    merge(folder)
    assert names(folder) == ["shard-0000000000-0000000033-g1.parquet"]


def test_new_units_come_to_the_small_shard(folder: Path) -> None:
    merge(folder)
    write_unit(folder, 1, [50])
    before = sorted(map(key_of, rows_of(folder)))
    merge(folder)
    assert names(folder) == ["shard-0000000000-0000000033-g2.parquet"]
    rows = rows_of(folder)
    assert sorted(map(key_of, rows)) == before
    assert [row["source_file"] for row in rows[3:4]] == ["file of unit 1"], "between unit 0 and unit 3"


def test_a_unit_decoded_again_to_the_same_bytes_is_only_removed(folder: Path) -> None:
    again = unit_path(folder, 6).read_bytes()
    merge(folder)
    before = rows_of(folder)
    unit_path(folder, 6).write_bytes(again)
    done = merge(folder)
    assert (done.shards_written, done.files_removed) == (0, 1)
    assert rows_of(folder) == before


def test_a_unit_decoded_again_to_other_events_replaces_those_in_the_shard(folder: Path) -> None:
    merge(folder)
    write_unit(folder, 6, [100, 200], first=40)
    done = merge(folder)
    assert done.files_removed == 2
    rows = rows_of(folder)
    assert len(rows) == 35
    of_unit = [key_of(row)[1:] for row in rows if row["source_file"] == "file of unit 6"]
    assert of_unit == [(40, 100), (41, 200)]


def test_kept_unit_files_are_not_merged_twice(folder: Path) -> None:
    before = rows_of(folder)
    merge(folder, keep=True)
    assert len(names(folder)) == 13
    done = merge(folder, keep=True)
    assert done.shards_written == 0
    merge(folder)
    assert names(folder) == ["shard-0000000000-0000000033-g1.parquet"]
    assert rows_of(folder) == before


def test_a_dry_run_changes_nothing_and_tells_what_would_be(folder: Path) -> None:
    (folder / "shard-g1.part").write_bytes(b"half")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    done = merge(folder, dry_run=True)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert len(done.merge.unit_files) == 12
    assert done.bytes_read == sum(len(content) for path, content in before.items() if path.suffix == ".parquet")


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


def test_files_that_do_not_go_together_are_named_and_nothing_changes(folder: Path) -> None:
    table = outlier_table(100, [3]).set_column(5, "source_row", pa.array(["three"]))
    pq.write_table(table, unit_path(folder, 100))
    before = names(folder)
    with pytest.raises(BadInputError, match=r"unit-0000000100\.parquet: column 'source_row' has type string"):
        merge(folder)
    assert names(folder) == before


def test_a_damaged_unit_file_is_named_and_nothing_is_lost(folder: Path) -> None:
    unit_path(folder, 6).write_bytes(b"half a file")
    before = names(folder)
    with pytest.raises(BadInputError, match=r"unit-0000000006\.parquet: truncated, or not Parquet"):
        merge(folder)
    assert names(folder) == before


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


# ------------------------------------------------------------------ an active run


@pytest.mark.parametrize("part", RUN_PARTS)
def test_the_outliers_of_an_active_run_are_left_alone(folder: Path, part: RunPart) -> None:
    store_config(folder.parent, Config())
    before = names(folder)
    with RunLock(folder.parent, part, part):
        with pytest.raises(BadInputError, match="the run is in use by"):
            merge(folder)
        assert names(folder) == before
    merge(folder)
    assert len(names(folder)) == 1


def test_no_fetcher_can_start_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_config(folder.parent, Config())
    tried = []

    def scan(_: Path) -> tuple[list[object], list[object]]:
        with pytest.raises(BadInputError, match="icestream outliers"):
            RunLock(folder.parent, "fetcher", "fetcher")
        tried.append(True)
        return [], []

    monkeypatch.setattr("icestream.commands.outliers.compact.scan", scan)
    merge(folder)
    assert tried


def test_two_compactions_do_not_meet(folder: Path) -> None:
    with locked(folder / "compaction.lock", lambda: False), pytest.raises(BadInputError, match="another compaction"):
        merge(folder)
    merge(folder)


# ------------------------------------------------------------------ kill -9

KILLED_AT_EACH_STEP = """
import os, pathlib, shutil, signal, sys
import pyarrow.parquet as pq
from icestream.commands.outliers.compact import compact

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


def effective(folder: Path, units: dict[int, list[tuple[str, int, int]]]) -> None:
    """Every unit's newest events are there, once, in shards alone."""
    found = sorted(key_of(row) for row in rows_of(folder))
    assert found == sorted(key for keys in units.values() for key in keys)
    assert all(name.startswith("shard-") for name in names(folder))


@pytest.mark.process
def test_killed_at_any_step_and_run_again_nothing_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    template, copies = tmp_path / "template", tmp_path / "copies"
    copies.mkdir()
    counts = {k: [300, 200] for k in range(8)}
    for k in range(6):
        write_unit(template, k, counts[k])
    same = unit_path(template, 5).read_bytes()
    merge(template, 12_000)
    assert len(names(template)) >= 2, "several shards"
    for k in range(6, 8):
        write_unit(template, k, counts[k])
    counts[1] = [77, 88]
    write_unit(template, 1, counts[1])  # decoded again, to something else
    unit_path(template, 5).write_bytes(same)  # and to the same
    arguments = [sys.executable, "-c", KILLED_AT_EACH_STEP, str(template), str(copies), "12000"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    folders = sorted(copies.iterdir())
    assert len(folders) > 15
    expected = {k: [(f"file of unit {k}", i, n) for i, n in enumerate(of_unit)] for k, of_unit in counts.items()}
    for folder in folders[:-1]:
        merge(folder, 12_000)
        effective(folder, expected)
    effective(folders[-1], expected)  # the one that no step killed
