"""Pulses grouped by sensor, and unit vectors of directions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
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
    columns: dict[str, npt.NDArray[Any]] = arrays.particle_columns
    columns["sensor"][:, 0] = [pulse[0] for pulse in flat]
    columns["pulses"][:] = np.reshape([pulse[1:3] for pulse in flat], (-1, 2))
    columns["auxiliary"][:, 0] = [pulse[3] for pulse in flat]
    arrays.event_columns["arrival"][:] = 0.5
    return arrays


def pulses_of(arrays: UnitArrays, event: int) -> list[Pulse]:
    mine = slice(*arrays.offsets[event : event + 2].tolist())
    columns = arrays.particle_columns
    return [
        (sensor, time, charge, auxiliary)
        for sensor, (time, charge), auxiliary in zip(
            columns["sensor"][mine, 0].tolist(),
            columns["pulses"][mine].tolist(),
            columns["auxiliary"][mine, 0].tolist(),
            strict=True,
        )
    ]


def opens_of(arrays: UnitArrays, event: int) -> list[bool]:
    opens: list[bool] = arrays.particle_columns["opens_sensor"][slice(*arrays.offsets[event : event + 2]), 0].tolist()
    return opens


@settings(max_examples=40)
@given(events)
def test_each_events_pulses_are_in_the_order_of_sensor_and_time_and_none_is_lost(content: list[list[Pulse]]) -> None:
    arrays = arrays_of(content)
    group_by_sensor(arrays)
    for event, given_pulses in enumerate(content):
        found = pulses_of(arrays, event)
        assert found == sorted(given_pulses, key=lambda pulse: pulse[:2]), "stable: equal times keep their order"
        opens = [i == 0 or found[i - 1][0] != pulse[0] for i, pulse in enumerate(found)]
        assert opens_of(arrays, event) == opens


@pytest.mark.parametrize(
    ("azimuth", "zenith", "vector"),
    [
        (1.0, 0.0, (0, 0, 1)),
        (0.0, math.pi / 2, (1, 0, 0)),
        (math.pi / 2, math.pi / 2, (0, 1, 0)),
        (2.0, math.pi, (0, 0, -1)),
    ],
)
def test_a_direction_points_to_the_source(azimuth: float, zenith: float, vector: tuple[float, ...]) -> None:
    assert unit_vectors(np.array([[azimuth, zenith]]))[0] == pytest.approx(vector, abs=1e-12)


def test_directions_are_unit_vectors_in_the_slot() -> None:
    arrays = arrays_of([[], []])
    arrays.event_columns["arrival"][:] = [(0.7, 2.1), (6.0, 0.3)]
    group_by_sensor(arrays)
    directions = arrays.event_columns["source_direction"].astype(np.float64)
    assert np.linalg.norm(directions, axis=1) == pytest.approx([1, 1], abs=1e-6)
    assert directions == pytest.approx(unit_vectors(arrays.event_columns["arrival"]), abs=1e-7)
