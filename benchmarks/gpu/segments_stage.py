"""Segment operators: right on hard cases, and their rate against that of a plain copy. Needs torch only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.gpu.ceilings_stage import WIDTH
from benchmarks.gpu.channel import Channel
from benchmarks.gpu.counting import counted
from benchmarks.gpu.segment_cases import pooled, segments_of, wrong_values
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import median
from workloads.base.segments import Segments, segment_sum, sort_within_events, spread

LONG = 10_000
"""Muons of the largest events that the stream lets pass."""


def run(setting: Setting, channel: Channel) -> None:
    """Rows: operator, counts, seconds, bytes."""
    device = torch.device(setting.device)
    channel.say("values of hard cases")
    outcomes = list(wrong_values(device))
    for one in filter(None, outcomes):
        channel.fail(f"{one.what}: differs by {one.difference:.3g} from a plain loop in float64")
    channel.row(operator="all", counts="hard cases", note=f"{len(outcomes)} values compared")
    for name, counts_E in counts_of(setting.events[0]).items():
        channel.say(f"times, {name}")
        segments = segments_of(counts_E, device)
        for operator, work in _operators(segments, device).items():
            times = median(work, device, repeats=4 * setting.repeats, limit_s=1.0)
            counts = counted(work)
            channel.row(
                operator=operator,
                counts=name,
                particles=segments.num_particles,
                seconds=times.whole_s,
                bytes=counts.num_bytes,
                operators=counts.operators,
            )


def counts_of(num_events: int) -> dict[str, Tensor]:
    """Counts of the timed cases, by name."""
    random = torch.Generator().manual_seed(2)
    ragged_E = (-4.0 * torch.rand(num_events, generator=random).log()).long()
    long_E = ragged_E.clone()
    long_E[num_events // 2] = LONG
    return {
        "4 each": torch.full((num_events,), 4),
        "ragged": ragged_E,
        f"ragged, one of {LONG:,}": long_E,
    }


def _operators(segments: Segments, device: torch.device) -> dict[str, Callable[[], object]]:
    """Operators with their gradients, as in a step."""
    values_PD = torch.randn(segments.num_particles, WIDTH, device=device)
    values_ED = torch.randn(segments.num_events, WIDTH, device=device)
    pooled_ED = torch.randn(segments.num_events, 2 * WIDTH, device=device)

    def both_ways(work: Callable[[Tensor], Tensor], values: Tensor, slope: Tensor) -> Callable[[], object]:
        values = values.detach().requires_grad_(True)
        return lambda: torch.autograd.grad(work(values), values, slope)

    return {
        "segment_sum and gradient": both_ways(lambda v: segment_sum(v, segments), values_PD, values_ED),
        "spread and gradient": both_ways(lambda v: spread(v, segments), values_ED, values_PD),
        "mean and maximum, gradient": both_ways(lambda v: pooled(v, segments), values_PD, pooled_ED),
        "sort within events": lambda: sort_within_events(values_PD[:, 0], segments),
    }
