"""One bad event among others: whose ids, types and lists are not those that its file promises."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decoded_files import decoded, planned

from common.config import SourceConfig, StreamConfig
from workloads.muons.columns import MUONS

STREAM = StreamConfig(batch_events=64, slot_mib=1)

IDS_IN_LIST = SourceConfig(
    fields={"primary": ["primary_major_id", "primary_minor_id", "energy_gev", "zenith_rad", "mass_a", "depth_m"]}
)


@pytest.mark.parametrize(
    "bad", [[7.0, 3.0, 1e5, 0.5, 1.0], [7.0, 3.0, None, 0.5, 1.0, 1500.0], [7.0, math.nan] + 4 * [1.0]]
)
def test_a_bad_list_leaves_the_ids_of_the_others_which_stay_held_out(tmp_path: Path, bad: list[float]) -> None:
    def ids(primaries: list[list[float]]) -> set[tuple[int, ...]]:
        path = tmp_path / "a.parquet"
        muons = pa.array([[[10.0, 1.0, 2.0]]] * len(primaries), pa.list_(pa.list_(pa.float32())))
        pq.write_table(pa.table({"primary": pa.array(primaries, pa.list_(pa.float64())), "muons": muons}), path)
        workload, stream = MUONS.stored_as(IDS_IN_LIST), STREAM.model_copy(update={"held_out": 0.2})
        (unit,) = decoded(planned([path], workload, stream), workload, stream, tmp_path)
        assert unit.tally.quarantined == 0
        return set(map(tuple, unit.arrays.event_columns["primary_id"].tolist()))

    good = [[7.0, float(number), 1e5, 0.5, 1.0, 1500.0] for number in range(60)]
    assert 1 < len(ids(good)) < 60
    assert ids([*good[:3], bad, *good[4:]]) == ids(good) - {(7, 3)}


def test_invalid_events_of_files_with_numbers_of_different_types_are_stored_as_they_are(tmp_path: Path) -> None:
    big = 2**63 + 5
    paths = []
    for number, (kind, first, energy) in enumerate(((pa.uint64(), big, pa.float64()), (pa.int64(), -5, pa.int32()))):
        paths.append(tmp_path / f"{number}.parquet")
        energies = [-1.0, *19 * [1e5]]
        columns = {
            "primary_major_id": pa.array([max(first, 0)] * 20, pa.uint64() if first > 0 else pa.int64()),
            "primary_minor_id": pa.array(range(20), kind),
            "energy": pa.array(energies, pa.float64()).cast(energy),
            "zenith": pa.array([0.5] * 20),
            "mass": pa.array([1.0] * 20),
            "depth": pa.array([1500.0] * 20),
            "muons": pa.array([[[10.0, 1.0, 2.0]]] * 20, pa.list_(pa.list_(pa.float32()))),
        }
        pq.write_table(pa.table(columns), paths[-1])
    workload = MUONS.stored_as(SourceConfig(columns={"primary": ["energy", "zenith", "mass", "depth"]}))
    (unit,) = decoded(planned(paths, workload, STREAM), workload, STREAM, tmp_path)
    assert (unit.tally.invalid, unit.layout.events) == (2, 38)
    stored = [pq.read_table(path) for path in (tmp_path / "invalid").iterdir()]
    assert sorted(table["primary_major_id"][0].as_py() for table in stored) == [0, big]
    assert {str(table["energy"].type) for table in stored} == {"double", "int32"}


def test_lists_of_another_fixed_size_behind_rows_without_any_are_invalid_and_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    muons = pa.array([[]] * 70 + [[[1.0, 2.0, 3.0, 4.0]]] * 2, pa.list_(pa.list_(pa.float32(), 4)))
    columns = {name: pa.array(range(72), pa.uint64()) for name in ("primary_major_id", "primary_minor_id")}
    columns["primary"] = pa.array([[1e5, 0.5, 1.0, 1500.0]] * 72, pa.list_(pa.float32()))
    pq.write_table(pa.table({**columns, "muons": muons}), path)
    (unit,) = decoded(planned([path], MUONS, STREAM), MUONS, STREAM, tmp_path)
    assert (unit.tally.quarantined, unit.tally.invalid) == (0, 2)
