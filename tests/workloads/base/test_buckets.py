"""Padding of events to few sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from host_syncs import no_host_sync
from line_task import points

from workloads.base.buckets import bucket, padded


def test_a_bucket_is_the_smallest_of_few_sizes_that_holds_all_and_wastes_less_than_an_eighth() -> None:
    found = [bucket(size) for size in range(5000)]
    assert found[:17] == list(range(17))
    assert [found[size] for size in (17, 18, 33, 100, 1000, 1025)] == [18, 18, 36, 104, 1024, 1152]
    assert all(size <= one < 1.125 * size for size, one in enumerate(found) if size)
    assert found == sorted(found)
    assert all(bucket(one) == one for one in found)
    assert len(set(found)) <= 8 * 13  # eight sizes in each doubling


@pytest.mark.parametrize("counts", [(3, 0, 4), (1,) * 100, (0, 0), (0,), (999, 1), (7,) * 40])
def test_padded_events_are_the_events_and_others_behind_them(counts: tuple[int, ...]) -> None:
    events = points(*counts)
    events.event_columns["weight"] = torch.arange(len(counts)).unsqueeze(1)

    with no_host_sync():
        longer = padded(events)

    assert (longer.num_events, longer.num_particles) == (bucket(len(counts) + 1), bucket(sum(counts)))
    assert longer.offsets_E1.tolist() == longer.host_offsets_E1.tolist()
    assert longer.offsets_E1[: len(counts) + 1].tolist() == events.offsets_E1.tolist()
    sizes = np.diff(longer.host_offsets_E1)[len(counts) :]
    assert sizes.sum() == longer.num_particles - events.num_particles
    assert sizes.max() - sizes.min() <= 1
    assert torch.equal(longer.particle_columns["x"][: sum(counts)], events.particle_columns["x"])
    assert len(longer.particle_columns["x"]) == longer.num_particles
    assert longer.event_columns["weight"][: len(counts)].flatten().tolist() == list(range(len(counts)))
    assert len(longer.event_columns["weight"]) == longer.num_events
