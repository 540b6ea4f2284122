from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from outlier_files import key_of, names, outlier_table, unit_path, write_unit

from common.errors import BadInputError
from icestream.commands.outliers.merge import UnitName
from icestream.commands.outliers.shards import ShardReader, digest_of, read_batches, remove_parts, scan, write_shard

SCHEMA = outlier_table(0, [1]).schema


def write(folder: Path, units: dict[int, list[int]], generation: int = 1) -> Path:
    with write_shard(folder, generation, SCHEMA) as writer:
        for k, counts in units.items():
            writer.add_unit(UnitName(k), iter(outlier_table(k, counts).to_batches()), f"digest {k}")
    return folder / writer.name


def test_a_shard_tells_its_units_and_gives_each_back(tmp_path: Path) -> None:
    path = write(tmp_path, {2: [3, 1], 5: [4], 9: [2, 2, 2]}, generation=4)
    assert path.name == "shard-0000000002-0000000009-g4.parquet"
    files, (shard,) = scan(tmp_path)
    assert files == []
    assert shard.generation == 4
    assert [(unit.unit.k, unit.events, unit.digest) for unit in shard.units] == [
        (2, 2, "digest 2"),
        (5, 1, "digest 5"),
        (9, 3, "digest 9"),
    ]
    reader = ShardReader(shard)
    for k, counts in ((2, [3, 1]), (9, [2, 2, 2])):  # unit 5 is passed over
        unit, batches = reader.unit(UnitName(k))
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert unit.unit.k == k
        assert rows == outlier_table(k, counts).to_pylist()


def test_a_unit_file_has_a_digest_where_a_shard_names_its_unit(tmp_path: Path) -> None:
    write(tmp_path, {2: [3]})
    for k in (2, 3):
        write_unit(tmp_path, k, [7])
    files, _ = scan(tmp_path)
    assert [(file.unit.k, file.digest) for file in files] == [(2, digest_of(unit_path(tmp_path, 2))), (3, None)]


def test_a_shard_that_fails_was_never_there(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no luck"), write_shard(tmp_path, 1, SCHEMA):
        raise RuntimeError("no luck")
    assert names(tmp_path) == []


def test_halves_of_a_killed_compaction_are_removed_and_those_of_decoders_stay(tmp_path: Path) -> None:
    for name in ("shard-g3.part", "unit-0000000001.ab12.part"):
        (tmp_path / name).write_bytes(b"half")
    remove_parts(tmp_path)
    assert names(tmp_path) == ["unit-0000000001.ab12.part"]


@pytest.mark.slow
def test_large_events_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    path = write_unit(tmp_path, 1, [200_000] * 8)  # 2.4 MB each
    sizes = [batch.num_rows for batch in read_batches(path)]
    assert sum(sizes) == 8
    assert max(sizes) <= 4


def test_row_groups_of_a_shard_are_small_enough_for_a_slot(tmp_path: Path) -> None:
    path = write(tmp_path, {k: [50_000] * 4 for k in range(4)})  # 9.6 MB in all
    metadata = pq.ParquetFile(path).metadata
    assert metadata.num_row_groups > 1
    assert max(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)) < 8 << 20


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "shard-0000000001-0000000002-g1.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInputError, match=r"shard-0000000001-0000000002-g1\.parquet: truncated, or not Parquet"):
        scan(tmp_path)


def test_a_shard_that_no_compaction_wrote_is_named(tmp_path: Path) -> None:
    pq.write_table(outlier_table(1, [2]), tmp_path / "shard-0000000001-0000000002-g1.parquet")
    with pytest.raises(BadInputError, match="no compaction wrote it"):
        scan(tmp_path)


def test_other_files_are_nobodys_business(tmp_path: Path) -> None:
    pq.write_table(outlier_table(1, [2]), tmp_path / "mine.parquet")
    assert scan(tmp_path) == ([], [])


def test_a_file_without_a_column_has_nulls_there(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("extra", pa.float64()))
    with write_shard(tmp_path, 1, schema) as writer:
        writer.add_unit(UnitName(1), iter(outlier_table(1, [2, 3]).to_batches()), "")
    table = pq.read_table(tmp_path / writer.name)
    assert table["extra"].to_pylist() == [None, None]
    assert [key_of(row) for row in table.to_pylist()] == [("file of unit 1", 0, 2), ("file of unit 1", 1, 3)]


def test_old_and_new_names_are_read_and_a_shard_keeps_the_plan_of_each_unit(tmp_path: Path) -> None:
    units = [UnitName(2), UnitName(2, "aa"), UnitName(2, "bb"), UnitName(3)]
    for unit in units:
        dashed = f"-{unit.plan}" if unit.plan else ""
        pq.write_table(outlier_table(unit.k, [3]), tmp_path / f"unit-{unit.k:010d}{dashed}.parquet")
    files, _ = scan(tmp_path)
    assert sorted(file.unit for file in files) == units
    for split in ([units[:2], units[2:]], [units[:1], units[1:]]):
        paths = []
        for part in split:
            with write_shard(tmp_path, 1, SCHEMA) as writer:
                for unit in part:
                    writer.add_unit(unit, iter(outlier_table(unit.k, [3]).to_batches()), "digest")
            paths.append(tmp_path / writer.name)
        assert len(set(paths)) == 2, "shards of one generation have names of their own"
        _, shards = scan(tmp_path)
        assert sorted(one.unit for shard in shards for one in shard.units) == units
        for path in paths:
            path.unlink()


def test_a_shard_of_an_older_icestream_is_read(tmp_path: Path) -> None:
    manifest = {"generation": 2, "units": [(7, 1, "digest")]}
    path = tmp_path / "shard-0000000007-0000000007-g2.parquet"
    table = outlier_table(7, [3])
    pq.write_table(table.replace_schema_metadata({b"icestream.outliers": json.dumps(manifest)}), path)
    _, (shard,) = scan(tmp_path)
    assert [(one.unit, one.events, one.digest) for one in shard.units] == [(UnitName(7), 1, "digest")]
