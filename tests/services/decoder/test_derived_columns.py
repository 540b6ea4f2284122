"""Columns that the decoder derives: filled by finish_unit in the slot, of the events as they lie there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from decoded_files import decoded, planned
from derived_columns import DERIVED, charges_of, write_derived

from common.config import StreamConfig
from common.ragged import event_columns, slot_bytes_needed
from common.schema import ValueRule


@pytest.mark.parametrize("shuffle", [True, False])
def test_derived_columns_are_filled_of_the_events_in_the_order_of_the_slot(tmp_path: Path, shuffle: bool) -> None:
    stream = StreamConfig(shuffle=shuffle, batch_events=8, unit_events=25, slot_mib=1, max_particles_per_event=2)
    paths = [write_derived(tmp_path / f"{first}.parquet", range(first, first + 50)) for first in (0, 100)]
    ids: list[int] = []
    for unit in decoded(planned(paths, DERIVED, stream), DERIVED, stream, tmp_path):
        arrays = unit.arrays
        assert slot_bytes_needed(DERIVED, unit.layout) <= stream.slot_bytes
        for e, number in enumerate(arrays.event_columns["number"][:, 0].tolist()):
            mine = slice(*arrays.offsets[e : e + 2].tolist())
            charges = charges_of(number)
            assert arrays.particle_columns["hits"][mine, 0].tolist() == charges
            assert arrays.event_columns["total"][e, 0] == 2 * sum(charges)
            assert arrays.particle_columns["opens"][mine, 0].tolist() == [i == 0 for i in range(len(charges))]
            ids.append(number)
    assert (ids == sorted(ids)) != shuffle
    assert sorted(ids) == [one for one in (*range(50), *range(100, 150)) if one % 4 < 3], "all but the outliers"


def test_a_unit_has_the_derived_columns_in_the_order_of_the_schema() -> None:
    assert [column.name for column in DERIVED.columns_per("particle")] == ["opens", "hits"]
    assert [column.name for column in event_columns(DERIVED)][:2] == ["total", "number"]
    assert [column.name for column in DERIVED.read_columns] == ["hits", "number"]


def test_a_physical_range_of_a_derived_column_is_left_to_who_derives_it(tmp_path: Path) -> None:
    schema = replace(DERIVED, physical=(ValueRule("total", 0, minimum=0.0, maximum=1.0),))
    stream = StreamConfig(batch_events=8, unit_events=25, slot_mib=1)
    path = write_derived(tmp_path / "0.parquet", range(30))
    assert sum(unit.layout.events for unit in decoded(planned([path], schema, stream), schema, stream, tmp_path)) == 30
