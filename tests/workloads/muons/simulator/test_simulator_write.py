import hashlib
from pathlib import Path

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


def test_the_schema_is_the_production_schema(tmp_path):
    write_dataset(tmp_path / "data", BENCH, DatasetPlan(100, 1, seed=1))
    (path,) = (tmp_path / "data").rglob("*.parquet")

    assert pq.read_schema(path).remove_metadata() == pa.schema(
        [
            ("primary_major_id", pa.uint64()),
            ("primary_minor_id", pa.uint64()),
            ("primary", pa.list_(pa.float32())),
            ("muons", pa.list_(pa.list_(pa.float32()))),
        ]
    )


def test_every_primary_has_four_numbers_and_every_muon_three(tmp_path):
    write_dataset(tmp_path / "data", BENCH, DatasetPlan(500, 1, seed=1))
    rows = pq.read_table(tmp_path / "data").to_pylist()

    assert {len(row["primary"]) for row in rows} == {4}
    assert {len(muon) for row in rows for muon in row["muons"]} == {3}
    assert all(1e5 <= row["primary"][0] <= 1e8 and 1000 <= row["primary"][3] <= 2800 for row in rows)
    assert all(muon[0] >= 1.0 for row in rows for muon in row["muons"])


def test_empty_rows_are_written(tmp_path):
    written = write_dataset(tmp_path / "data", BENCH, DatasetPlan(2000, 1, seed=1))
    counts = np.array([len(row) for row in pq.read_table(tmp_path / "data")["muons"].to_pylist()])

    assert len(counts) == 2000
    assert np.mean(counts == 0) == pytest.approx(0.393, abs=0.04)
    assert counts.sum() == written.num_particles


def test_row_groups_hold_ten_thousand_rows(tmp_path):
    write_dataset(tmp_path / "data", preset("h3a"), DatasetPlan(25_000, 1, seed=1))
    (path,) = (tmp_path / "data").rglob("*.parquet")
    metadata = pq.ParquetFile(path).metadata

    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [10_000, 10_000, 5000]


def test_row_groups_hold_ten_thousand_rows_where_showers_do_not_divide_them(tmp_path):
    plan = DatasetPlan(21_000, 1, seed=1, depths_per_shower=7)
    write_dataset(tmp_path / "data", preset("h3a"), plan)
    (path,) = (tmp_path / "data").rglob("*.parquet")
    metadata = pq.ParquetFile(path).metadata

    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [10_000, 10_000, 1000]
    assert ids(path) == [(0, row // 7) for row in range(21_000)]


def test_files_lie_in_range_directories_of_a_thousand_numbers(tmp_path):
    write_dataset(tmp_path, BENCH, DatasetPlan(5, 5, seed=1, files_per_range=2))

    assert sorted(digests(tmp_path)) == [
        "0000000-0000999/bundles_0000000.parquet",
        "0000000-0000999/bundles_0000001.parquet",
        "0001000-0001999/bundles_0001000.parquet",
        "0001000-0001999/bundles_0001001.parquet",
        "0002000-0002999/bundles_0002000.parquet",
    ]


@pytest.mark.parametrize(("num_files", "num_ranges"), [(1, 1), (4, 2), (16, 4), (1_000_000, 1000)])
def test_ranges_are_about_as_many_as_files_in_each(num_files, num_ranges):
    plan = DatasetPlan(num_files, num_files, seed=1)

    assert plan.relative_path(num_files - 1).parts[0].startswith(f"{(num_ranges - 1) * 1000:07d}-")


def test_a_full_range_numbers_its_files_without_a_gap():
    plan = DatasetPlan(2000, 2000, seed=1, files_per_range=1000)

    assert plan.relative_path(999) == Path("0000000-0000999/bundles_0000999.parquet")
    assert plan.relative_path(1000) == Path("0001000-0001999/bundles_0001000.parquet")


@pytest.mark.parametrize("depths", [0, 5])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path, depths):
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        write_dataset(tmp_path / name, BENCH, DatasetPlan(600, 3, seed, depths))

    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert not set(digests(tmp_path / "one").values()) & set(digests(tmp_path / "other").values())


def test_a_file_made_alone_has_the_bytes_it_has_in_its_data_set(tmp_path):
    plan = DatasetPlan(1001, 4, seed=3)
    write_dataset(tmp_path / "all", BENCH, plan)
    write_file(tmp_path / "alone" / plan.relative_path(2), BENCH, plan, 2)

    assert digests(tmp_path / "alone").items() <= digests(tmp_path / "all").items()


def test_files_of_a_data_set_differ(tmp_path):
    write_dataset(tmp_path, BENCH, DatasetPlan(400, 4, seed=3))
    energies = [pq.read_table(path)["primary"].to_pylist()[0][0] for path in tmp_path.rglob("*.parquet")]

    assert len(set(energies)) == 4


def test_rows_are_shared_out_evenly_and_none_is_lost():
    plan = DatasetPlan(103, 4, seed=1)
    assert [plan.num_rows(index) for index in range(4)] == [26, 26, 26, 25]

    showers = DatasetPlan(50, 3, seed=1, depths_per_shower=5)
    assert [showers.num_rows(index) for index in range(3)] == [20, 15, 15]


def test_every_event_has_an_id_of_its_own_across_files(tmp_path):
    write_dataset(tmp_path, BENCH, DatasetPlan(1000, 3, seed=1))
    seen = [identity for path in tmp_path.rglob("*.parquet") for identity in ids(path)]

    assert len(set(seen)) == len(seen) == 1000


def test_rows_of_a_shower_share_its_id_and_no_two_showers_do(tmp_path):
    write_dataset(tmp_path, BENCH, DatasetPlan(240, 2, seed=1, depths_per_shower=4))
    rows = pq.read_table(tmp_path).to_pylist()
    showers = {}
    for row in rows:
        showers.setdefault((row["primary_major_id"], row["primary_minor_id"]), []).append(row)

    assert len(showers) == 60
    for of_shower in showers.values():
        assert [row["primary"][3] for row in of_shower] == pytest.approx([1000, 1600, 2200, 2800])
        assert len({tuple(row["primary"][:3]) for row in of_shower}) == 1
        counts = [len(row["muons"]) for row in of_shower]
        assert counts == sorted(counts, reverse=True)


def test_progress_hears_of_every_file_and_the_sum_is_returned(tmp_path):
    heard = []
    total = write_dataset(tmp_path, BENCH, DatasetPlan(100, 4, seed=1), on_file=heard.append)

    assert [written.num_events for written in heard] == [25] * 4
    assert total.num_files == 4
    assert total.num_events == 100
    assert total.num_particles == sum(written.num_particles for written in heard)
    assert total.num_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.parquet"))


def test_an_interrupted_file_leaves_nothing_behind(tmp_path, monkeypatch):
    def broken(*args):
        yield from original(*args)
        raise KeyboardInterrupt

    original = write._tables
    monkeypatch.setattr(write, "_tables", broken)
    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path, BENCH, DatasetPlan(100, 1, seed=1))

    assert digests(tmp_path) == {}


def test_a_directory_that_holds_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")

    for overwrite in (False, True):
        with pytest.raises(BadInputError, match="choose another directory"):
            write_dataset(tmp_path, BENCH, DatasetPlan(10, 1, seed=1), overwrite=overwrite)
    assert sorted(digests(tmp_path)) == ["thesis.tex"]


def test_an_earlier_data_set_is_replaced_only_on_request_and_then_wholly(tmp_path):
    write_dataset(tmp_path, BENCH, DatasetPlan(40, 4, seed=1, files_per_range=1))
    before = digests(tmp_path)
    with pytest.raises(BadInputError, match="--force"):
        write_dataset(tmp_path, BENCH, DatasetPlan(10, 1, seed=2))
    assert digests(tmp_path) == before

    write_dataset(tmp_path, BENCH, DatasetPlan(10, 1, seed=2), overwrite=True)

    assert [path.name for path in tmp_path.iterdir()] == ["0000000-0000999"]
    assert pq.read_table(tmp_path).num_rows == 10


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "out").write_text("")

    with pytest.raises(BadInputError, match="is a file"):
        write_dataset(tmp_path / "out", BENCH, DatasetPlan(10, 1, seed=1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_files": 0}, "files = 0"),
        ({"num_events": 2, "num_files": 3}, "at least one event"),
        ({"seed": -1}, "seed = -1"),
        ({"files_per_range": 1001}, "files_per_range"),
        ({"depths_per_shower": -1}, "rows per shower"),
        ({"num_events": 101, "depths_per_shower": 10}, "use 110"),
        ({"num_events": 20, "num_files": 3, "depths_per_shower": 10}, "2 showers for 3 files"),
    ],
)
def test_a_plan_that_cannot_be_met_is_refused_with_the_fix(fields, message):
    with pytest.raises(BadInputError, match=message):
        DatasetPlan(**{"num_events": 100, "num_files": 1, "seed": 0} | fields)


def test_damaged_bytes_are_seen_by_who_verifies_checksums(tmp_path: Path) -> None:
    written = write_file(tmp_path / "f.parquet", preset("bench"), DatasetPlan(500, 1, seed=0), 0)
    assert written.num_events == 500
    raw = bytearray((tmp_path / "f.parquet").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "f.parquet").write_bytes(raw)
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.read_table(tmp_path / "f.parquet", page_checksum_verification=True)
