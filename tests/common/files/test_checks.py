from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.files.checks import drop_particles
from common.files.rows import RaggedRows


@pytest.mark.parametrize("only_fillers", [False, True])
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.data())
def test_dropped_particles_leave_the_others_in_their_events(
    only_fillers: bool, counts: list[int], data: st.DataObject
) -> None:
    of_events = [
        [count > 1] * count if only_fillers else data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
        for count in counts
    ]
    keep = np.array([one for event in of_events for one in event], np.bool_)
    energy_P = np.arange(2.0 * len(keep), dtype=np.float32).reshape(-1, 2)
    rows = RaggedRows(np.array(counts, np.int64), {}, {"muons": energy_P}, np.zeros(0, np.int64), None, 3)
    found = drop_particles(rows, keep)
    assert found.counts.tolist() == [sum(event) for event in of_events]
    assert found.particle_columns["muons"].tolist() == [
        row for row, kept in zip(energy_P.tolist(), keep, strict=True) if kept
    ]
    assert found.particles_dropped == 3 + sum(not one for one in keep)
