import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import BadInputError
from workloads.muons.simulator import write
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset, write_file

BENCH = preset("bench")


def digests(out):
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in out.rglob("*")
        if path.is_file()
    }


def ids(path):
    table = pq.read_table(path, columns=["primary_major_id", "primary_minor_id"])
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_rows_have_the_production_schema_and_empty_ones_are_written(tmp_path):
    written = write_dataset(tmp_path / "data", BENCH, DatasetPlan(2000, 1, seed=1))
    (path,) = (tmp_path / "data").rglob("*.parquet")
    rows = pq.read_table(path).to_pylist()
    counts = np.array([len(row["muons"]) for row in rows])

    bundle, muons = pa.list_(pa.float32()), pa.list_(pa.list_(pa.float32()))
    assert dict(zip(pq.read_schema(path).names, pq.read_schema(path).types, strict=True)) == {
        **{"primary_major_id": pa.uint64(), "primary_minor_id": pa.uint64()},
        **{"primary": bundle, "muons": muons},
    }
    assert {len(row["primary"]) for row in rows} == {4}
    assert {len(muon) for row in rows for muon in row["muons"]} == {3}
    assert all(1e5 <= row["primary"][0] <= 1e8 and 1000 <= row["primary"][3] <= 2800 for row in rows)
    assert all(muon[0] >= 1.0 for row in rows for muon in row["muons"])
    assert len(counts) == 2000
    assert np.mean(counts == 0) == pytest.approx(0.393, abs=0.04)
    assert counts.sum() == written.num_particles


@pytest.mark.parametrize("depths", [0, 7])
def test_row_groups_hold_ten_thousand_rows_or_the_whole_showers_that_fit(tmp_path, depths):
    write_dataset(tmp_path / "data", preset("h3a"), DatasetPlan(21_000, 1, seed=1, depths_per_shower=depths))
    (path,) = (tmp_path / "data").rglob("*.parquet")
    metadata = pq.ParquetFile(path).metadata

    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert rows == ([9996, 9996, 1008] if depths else [10_000, 10_000, 1000])
    assert ids(path) == [(0, row // max(depths, 1)) for row in range(21_000)]


def test_files_lie_in_range_directories_of_a_thousand_numbers(tmp_path):
    write_dataset(tmp_path, BENCH, DatasetPlan(5, 5, seed=1))

    assert sorted(digests(tmp_path)) == [
        "0000000-0000999/bundles_0000000.parquet",
        "0000000-0000999/bundles_0000001.parquet",
        "0000000-0000999/bundles_0000002.parquet",
        "0001000-0001999/bundles_0001000.parquet",
        "0001000-0001999/bundles_0001001.parquet",
    ]


@pytest.mark.parametrize("depths", [0, 5])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path, depths):
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        write_dataset(tmp_path / name, BENCH, DatasetPlan(600, 3, seed, depths))
    plan = DatasetPlan(600, 3, 3, depths)
    write_file(BENCH, plan, (tmp_path / "alone" / plan.relative_path(2), 2))

    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert digests(tmp_path / "alone").items() <= digests(tmp_path / "one").items()
    assert not set(digests(tmp_path / "one").values()) & set(digests(tmp_path / "other").values())


def test_an_interrupted_file_leaves_nothing_behind(tmp_path, monkeypatch):
    def broken(*args):
        yield from original(*args)
        raise KeyboardInterrupt

    original = write._tables
    monkeypatch.setattr(write, "_tables", broken)
    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path, BENCH, DatasetPlan(100, 1, seed=1))

    assert digests(tmp_path) == {}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_files": 0}, "files = 0"),
        ({"num_events": 2, "num_files": 3}, "at least one event"),
        ({"seed": -1}, "seed = -1"),
        ({"depths_per_shower": -1}, "rows per shower"),
        ({"num_events": 101, "depths_per_shower": 10}, "use 110"),
        ({"num_events": 20, "num_files": 3, "depths_per_shower": 10}, "events = 2, files = 3"),
    ],
)
def test_a_plan_that_cannot_be_met_is_refused_with_the_fix(fields, message):
    with pytest.raises(BadInputError, match=message):
        DatasetPlan(**{"num_events": 100, "num_files": 1, "seed": 0} | fields)
