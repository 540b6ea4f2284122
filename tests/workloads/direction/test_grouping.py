"""Pulses grouped by sensor, and unit vectors of directions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.messages import Layout
from common.schema import UnitArrays
from common.unit_arrays import slot_bytes_needed, unit_arrays
from workloads.direction.columns import DIRECTION
from workloads.direction.grouping import group_by_sensor, unit_vectors

Pulse = tuple[int, float, float, bool]
pulses = st.tuples(st.integers(0, 5), st.sampled_from([-3.5, 0.0, 1.0, 7.25]), st.floats(0, 9, width=32), st.booleans())
events = st.lists(st.lists(pulses, max_size=9), max_size=8)


def arrays_of(content: list[list[Pulse]]) -> UnitArrays:
    """A unit with these events, in memory that held something else."""
    layout = Layout(len(content), sum(map(len, content)), 0)
    arrays = unit_arrays(np.full(slot_bytes_needed(DIRECTION, layout), 0x55, np.uint8), DIRECTION, layout)
    arrays.offsets[:] = np.cumsum([0, *map(len, content)])
    flat = [pulse for event in content for pulse in event]
    columns = arrays.particle_columns
    columns["sensor"][:, 0] = [pulse[0] for pulse in flat]
    columns["pulses"][:] = np.reshape([pulse[1:3] for pulse in flat], (-1, 2))
    columns["auxiliary"][:, 0] = [pulse[3] for pulse in flat]
    arrays.event_columns["arrival"][:] = 0.5
    return arrays


def pulses_of(arrays: UnitArrays, event: int) -> list[tuple[*Pulse, bool]]:
    """Pulses of an event, each with whether it opens a sensor."""
    mine = slice(*arrays.offsets[event : event + 2].tolist())
    columns = {name: column[mine].T.tolist() for name, column in arrays.particle_columns.items()}
    names = ("sensor", "pulses", "auxiliary", "opens_sensor")
    return list(zip(*(values for name in names for values in columns[name]), strict=True))


@settings(max_examples=40)
@given(events)
def test_each_events_pulses_are_in_the_order_of_sensor_and_time_and_none_is_lost(content: list[list[Pulse]]) -> None:
    arrays = arrays_of(content)
    group_by_sensor(arrays)
    for event, given_pulses in enumerate(content):
        expected = sorted(given_pulses, key=lambda pulse: pulse[:2])  # stable: equal times keep their order
        opens = [i == 0 or expected[i - 1][0] != pulse[0] for i, pulse in enumerate(expected)]
        assert pulses_of(arrays, event) == [(*pulse, first) for pulse, first in zip(expected, opens, strict=True)]


def test_a_direction_is_a_unit_vector_that_points_to_the_source_in_the_slot_too() -> None:
    arrival_E2 = np.array([(1, 0), (0, math.pi / 2), (math.pi / 2, math.pi / 2), (2, math.pi), (0.7, 2.1)])
    expected_E3 = unit_vectors(arrival_E2)
    assert expected_E3[:4] == pytest.approx(np.array([(0, 0, 1), (1, 0, 0), (0, 1, 0), (0, 0, -1)]), abs=1e-12)
    assert np.linalg.norm(expected_E3, axis=1) == pytest.approx(1)
    arrays = arrays_of([[]] * 5)
    arrays.event_columns["arrival"][:] = arrival_E2
    group_by_sensor(arrays)
    assert arrays.event_columns["source_direction"] == pytest.approx(expected_E3, abs=1e-6)
