"""Cases of the segment operators that are hard for a kernel, with their values by a plain loop over events.

Needs torch only. Shape suffixes: E events, P particles, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from workloads.base.segments import Segments, segment_max, segment_mean, segment_sum, sort_within_events, spread

COUNTS: dict[str, list[int]] = {
    "no event": [],
    "one empty event": [0],
    "only empty events": [0] * 37,
    "empty events around others": [0, 0, 3, 0, 1, 0, 0],
    "one event of one": [1],
    "one each": [1] * 513,
    "all sizes": list(range(70)),
    "one long event": [2049],
    "a long event among short ones": [2, 0, 3000, 1, 4, 0],
}
WIDTHS = (1, 3, 128)
_TOLERANCE = 1e-4
"""Relative to the largest value: sums of 3,000 float32 numbers in another order."""


class Wrong(NamedTuple):
    """A value that differs from the plain one."""

    what: str
    difference: float


def wrong_values(device: torch.device) -> Iterator[Wrong | None]:
    """One item for each comparison; None: it agrees."""
    random = torch.Generator().manual_seed(1)
    for name, counts in COUNTS.items():
        segments = segments_of(counts, device)
        for width in WIDTHS:
            values_PD = torch.randn(sum(counts), width, generator=random)
            values_ED = torch.randn(len(counts), width, generator=random)
            for operator, (work, plain, input_) in {
                "segment_sum": (lambda v, s=segments: segment_sum(v, s), plain_sum, values_PD),
                "spread": (lambda v, s=segments: spread(v, s), plain_spread, values_ED),
                "pool": (lambda v, s=segments: pooled(v, s), plain_pool, values_PD),
            }.items():
                found = with_gradient(work, input_.to(device))
                expected = with_gradient(lambda v, plain=plain, counts=counts: plain(v, counts), input_.double())
                for kind, one, other in zip(("value", "gradient"), found, expected, strict=True):
                    yield _compared(f"{operator}, {kind}, {name}, width {width}", one, other)
        keys_P = torch.randn(sum(counts), generator=random)
        order_P = sort_within_events(keys_P.to(device), segments)
        yield _compared(f"sort, {name}", order_P, plain_sort(keys_P, counts))


def segments_of(counts: list[int] | Tensor, device: torch.device) -> Segments:
    """Segments of the counts."""
    counts_E = torch.as_tensor(counts, dtype=torch.int64)
    return Segments.from_counts(counts_E.to(device), int(counts_E.sum()))


def pooled(values_PD: Tensor, segments: Segments) -> Tensor:
    """Mean and maximum, as the critic pools them."""
    return torch.cat([segment_mean(values_PD, segments), segment_max(values_PD, segments)[0]], 1)


def with_gradient(work: Callable[[Tensor], Tensor], values: Tensor) -> tuple[Tensor, Tensor]:
    """Result, and gradient for a slope that differs between its elements."""
    values = values.detach().requires_grad_(True)
    result = work(values)
    slope = torch.linspace(-1, 2, max(result.numel(), 2))[: result.numel()].to(result).view_as(result)
    (gradient,) = torch.autograd.grad(result, values, slope)
    return result.detach(), gradient


def plain_sum(values_PD: Tensor, counts: list[int]) -> Tensor:
    """Sum of each event, (E, D)."""
    return _stacked([one.sum(0) for one in values_PD.split(counts)], values_PD)


def plain_spread(values_ED: Tensor, counts: list[int]) -> Tensor:
    """Each event's row for each of its particles, (P, D)."""
    rows = [values_ED[event].expand(count, -1) for event, count in enumerate(counts)]
    return torch.cat(rows) if rows else values_ED[:0] * 1


def plain_pool(values_PD: Tensor, counts: list[int]) -> Tensor:
    """Mean and maximum of each event, 0 of an empty one, (E, 2 D)."""
    rows = []
    for one in values_PD.split(counts):
        if len(one):
            largest = one.gather(0, one.argmax(0, keepdim=True)).squeeze(0)
            rows.append(torch.cat([one.mean(0), largest]))
        else:
            rows.append(one.new_zeros(2 * one.shape[1]))
    return _stacked(rows, values_PD, times=2)


def plain_sort(keys_P: Tensor, counts: list[int]) -> Tensor:
    """Permutation that sorts each event, (P,)."""
    first, rows = 0, [keys_P.new_zeros(0, dtype=torch.int64)]
    for one in keys_P.split(counts):
        rows.append(first + one.argsort(stable=True))
        first += len(one)
    return torch.cat(rows)


def _stacked(rows: list[Tensor], like_PD: Tensor, times: int = 1) -> Tensor:
    """Rows as one tensor that depends on the input, also if there are none."""
    nothing = 0 * like_PD.sum()
    width = times * like_PD.shape[1]
    return torch.stack(rows) + nothing if rows else like_PD.new_zeros(0, width) + nothing


def _compared(what: str, found: Tensor, expected: Tensor, tolerance: float = _TOLERANCE) -> Wrong | None:
    if found.shape != expected.shape:
        return Wrong(f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}", float("nan"))
    if not expected.numel():
        return None
    difference = float((found.detach().cpu().double() - expected.double()).abs().max())
    return None if difference <= tolerance * (1 + float(expected.abs().max())) else Wrong(what, difference)
