import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.direction.importers.pulses import Pulses, order_by_sensor_and_time, rows_of_pulses

TIMES = st.floats(-(2.0**20), 2.0**20, width=32)
EVENT = st.lists(st.tuples(st.integers(0, 2**15 - 1) | st.integers(0, 3), TIMES | st.sampled_from([0.0, -0.0, 1.0])))


@settings(max_examples=40)
@given(st.lists(EVENT, max_size=6), st.booleans())
def test_the_order_is_that_of_event_sensor_time_and_place(events: list[list[tuple[int, float]]], by_time: bool) -> None:
    ordered = [sorted(event, key=lambda pulse: pulse[1]) if by_time else event for event in events]
    counts_E = np.array([len(event) for event in events], np.int64)
    sensor_P = np.array([sensor for event in ordered for sensor, _ in event], np.int16)
    time_P = np.array([time for event in ordered for _, time in event], np.float32)
    event_P = np.repeat(np.arange(len(events)), counts_E)
    found = order_by_sensor_and_time(counts_E, sensor_P, time_P)
    assert found.tolist() == np.lexsort((time_P, sensor_P, event_P)).tolist()


def test_large_times_are_counted_from_the_first_pulse() -> None:
    start = 1_700_000_000_000_000_000
    time_P = np.array([start + 7, start, start + 20, 5, 3], np.int64)
    pulses = Pulses(np.array([3, 2]), np.zeros(5, np.int16), time_P, np.ones(5), np.zeros(5, np.bool_))
    assert rows_of_pulses(pulses, {}, 10).particle_columns["pulses"][:, 0].tolist() == [0, 7, 20, 0, 2]
