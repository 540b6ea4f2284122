"""Segment operators in torch's own operations: no loop over events, no host sync.

Shape suffixes: E events, P particles, D width. Arguments as in operators.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SUM, _MAX = 0, 2  # modes of torch's embedding bags, which reduce by offsets: its fastest segment kernels


def pool(
    values_PD: Tensor,
    argmax_ED: Tensor | None,
    event_P: Tensor,
    counts_E: Tensor,
    starts_E: Tensor,
    particles_P: Tensor,
    pools: str,
) -> Tensor:
    """Sum, mean, or value at given places, one after the other. (P, D) -> (E, D × pools)."""
    largest_ED = None
    if argmax_ED is not None:
        if values_PD.shape[0] > 0:
            largest_ED = values_PD.gather(0, argmax_ED) * (counts_E > 0).to(values_PD.dtype).unsqueeze(1)
        else:
            largest_ED = values_PD.new_zeros(argmax_ED.shape)
    return _joined(values_PD, largest_ED, counts_E, starts_E, particles_P, pools)


def pool_finding_largest(
    values_PD: Tensor, event_P: Tensor, counts_E: Tensor, starts_E: Tensor, particles_P: Tensor, pools: str
) -> tuple[Tensor, Tensor]:
    """The same with the maximum, and its places. (P, D) -> (E, D × pools), (E, D) int64."""
    if values_PD.shape[0] == 0:
        largest_ED = values_PD.new_zeros(counts_E.shape[0], values_PD.shape[1])
        argmax_ED = largest_ED.to(torch.int64)
    else:
        wide_PD = values_PD if values_PD.dtype == torch.float64 else values_PD.float()
        largest_ED, _, _, argmax_ED = torch._embedding_bag(wide_PD, particles_P, starts_E, mode=_MAX)
        largest_ED = largest_ED.to(values_PD.dtype)
        argmax_ED.clamp_min_(0)  # -1 for an empty event on CUDA
    return _joined(values_PD, largest_ED, counts_E, starts_E, particles_P, pools), argmax_ED


def unpool(
    slopes_ED: Tensor,
    argmax_ED: Tensor | None,
    event_P: Tensor,
    counts_E: Tensor,
    starts_E: Tensor,
    particles_P: Tensor,
    pools: str,
) -> Tensor:
    """Transpose of `pool`. (E, D × pools) -> (P, D)."""
    if argmax_ED is None or slopes_ED.device.type != "cpu" or torch.are_deterministic_algorithms_enabled():
        return unpool_by_reading(slopes_ED, argmax_ED, event_P, counts_E, starts_E, particles_P, pools)
    of_all_ED, of_largest_ED = _slopes(slopes_ED, counts_E, pools)
    if of_all_ED is None:
        values_PD = slopes_ED.new_zeros(event_P.shape[0], argmax_ED.shape[1])
    else:
        values_PD = of_all_ED.index_select(0, event_P)
    if event_P.shape[0] == 0 or of_largest_ED is None:
        return values_PD
    present_E1 = (counts_E > 0).to(slopes_ED.dtype).unsqueeze(1)
    return values_PD.scatter_add_(0, argmax_ED, of_largest_ED * present_E1)


def unpool_by_reading(
    slopes_ED: Tensor,
    argmax_ED: Tensor | None,
    event_P: Tensor,
    counts_E: Tensor,
    starts_E: Tensor,
    particles_P: Tensor,
    pools: str,
) -> Tensor:
    """`unpool` with the same bits, in reads and comparisons alone: these fuse, where a graph is compiled.

    On CUDA scatter_add_ adds in any order, or sorts all its indices in the deterministic mode.
    """
    of_all_ED, of_largest_ED = _slopes(slopes_ED, counts_E, pools)
    values_PD = None if of_all_ED is None else of_all_ED.index_select(0, event_P)
    if of_largest_ED is not None:
        assert argmax_ED is not None
        is_largest_PD = argmax_ED.index_select(0, event_P) == particles_P.unsqueeze(1)
        of_largest_PD = of_largest_ED.index_select(0, event_P)
        if values_PD is None:
            return torch.where(is_largest_PD, of_largest_PD, 0)
        values_PD = torch.where(is_largest_PD, values_PD + of_largest_PD, values_PD)
    assert values_PD is not None
    return values_PD


def _joined(
    values_PD: Tensor, largest_ED: Tensor | None, counts_E: Tensor, starts_E: Tensor, particles_P: Tensor, pools: str
) -> Tensor:
    kinds, sum_ED, parts = pools.split("+"), None, []
    for kind in kinds:
        if kind == "max":
            assert largest_ED is not None
            parts.append(largest_ED)
            continue
        if sum_ED is None:
            sum_ED = _bag_sum(values_PD, starts_E, particles_P)
        parts.append(_divided(sum_ED, counts_E) if kind == "mean" else sum_ED)
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def _slopes(slopes_ED: Tensor, counts_E: Tensor, pools: str) -> tuple[Tensor | None, Tensor | None]:
    """Slopes with respect to each particle of an event, and to its largest one. -> (E, D), (E, D)."""
    kinds = pools.split("+")
    of_all_ED: Tensor | None = None
    of_largest_ED: Tensor | None = None
    for kind, slope_ED in zip(kinds, slopes_ED.chunk(len(kinds), 1), strict=True):
        if kind == "max":
            of_largest_ED = slope_ED
            continue
        if kind == "mean":
            slope_ED = _divided(slope_ED, counts_E)
        of_all_ED = slope_ED if of_all_ED is None else of_all_ED + slope_ED
    return of_all_ED, of_largest_ED


def _divided(values_ED: Tensor, counts_E: Tensor) -> Tensor:
    """Values by the number of particles of each event, by 1 for an empty one. (E, D) -> (E, D)."""
    # A count above 256 is no number of bfloat16.
    wide = torch.float64 if values_ED.dtype == torch.float64 else torch.float32
    return (values_ED * counts_E.clamp_min(1).to(wide).reciprocal().unsqueeze(1)).to(values_ED.dtype)


def _bag_sum(values_PD: Tensor, starts_E: Tensor, particles_P: Tensor) -> Tensor:
    if values_PD.shape[0] == 0:
        return values_PD.new_zeros((starts_E.shape[0], values_PD.shape[1]))
    return torch._embedding_bag(values_PD.contiguous(), particles_P, starts_E, mode=_SUM)[0]
