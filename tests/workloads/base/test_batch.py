"""Parts of microbatches."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from line_task import points

from workloads.base.batch import Microbatch


def microbatch(counts: list[int]) -> Microbatch:
    event_E1, particle_P1 = (torch.arange(float(number)).unsqueeze(1) for number in (len(counts), sum(counts)))
    return replace(points(*counts), event_columns={"event": event_E1}, particle_columns={"particle": particle_P1})


def particles(part: Microbatch) -> list[list[float]]:
    """Of each event."""
    values = part.particle_columns["particle"].flatten().tolist()
    ends = part.offsets_E1.tolist()
    return [values[first:last] for first, last in pairwise(ends)]


@pytest.mark.parametrize("counts", [[3, 0, 2, 5, 1, 0], [9], [0, 0], [1] * 20, [7, 7, 7]])
@pytest.mark.parametrize("limit", [1, 4, 6, 100])
def test_chunks_are_whole_events_in_order_within_the_limit(counts: list[int], limit: int) -> None:
    whole = microbatch(counts)

    chunks = list(whole.chunks(limit))

    assert [event for chunk in chunks for event in particles(chunk)] == particles(whole)
    assert torch.equal(torch.cat([chunk.event_columns["event"] for chunk in chunks]), whole.event_columns["event"])
    assert sum(chunk.num_present for chunk in chunks) == whole.num_present
    for chunk in chunks:
        assert chunk.num_particles <= limit or chunk.num_events == 1
        assert chunk.offsets_E1.tolist() == chunk.host_offsets_E1.tolist()
        assert (chunk.num_events, chunk.num_particles) == (len(chunk.event_columns["event"]), int(chunk.offsets_E1[-1]))
    for first, second in pairwise(chunks):
        next_event = second.part(0, 1)
        assert first.num_particles + next_event.num_particles > limit  # a chunk is as large as it may be


@pytest.mark.parametrize(("counts", "halves"), [([3, 3, 3, 3], [6, 6]), ([9, 1], [9, 1]), ([1, 9], [1, 9]), ([4], [4])])
def test_halves_have_about_half_of_the_particles_each(counts: list[int], halves: list[int]) -> None:
    assert [half.num_particles for half in microbatch(counts).halves()] == halves
