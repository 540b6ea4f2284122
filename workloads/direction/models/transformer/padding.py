"""Padding of packed rows to rectangles, for attention alone: all other layers work on packed rows.

Events are padded in groups of similar length, so that a long event doesn't pad all others. Shape suffixes: E events,
T sensors, D width, G events of a group, N sensors of its longest event, R padded rows of all groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workloads.base.segments import Segments

_GROWTH, _STEP = 1.3, 8
_PAIRS_OF_ONE_GROUP = 1 << 24
"""Most padded pairs of sensors for which a GPU has all events in one group: 0.5 GB of the bias's terms."""


def _longest_of_groups(most: int) -> list[int]:
    """Length of the longest events of each group on a CPU: 8, 19, 33, 51, 75, … up to at least ``most``.

    A call for a group costs about as much as padding a few short events by _STEP rows.
    """
    lengths = [_STEP]
    while lengths[-1] < most:
        lengths.append(math.ceil(_GROWTH * lengths[-1]) + _STEP)
    return lengths


@dataclass(frozen=True)
class PaddedGroup:
    """Events of similar length."""

    first_row: int
    """First row among the padded rows of all groups."""
    present_GN: Tensor
    """(G, N) bool: False where padded."""

    @property
    def num_rows(self) -> int:
        """Padded rows, G × N."""
        return self.present_GN.numel()


@dataclass(frozen=True)
class Padding:
    """Places of the sensors in the padded groups; events without sensors are in none."""

    groups: tuple[PaddedGroup, ...]
    source_R: Tensor
    """(R,) int64: the sensor of a padded row, 0 where padded."""
    present_R1: Tensor
    """(R, 1) bool: False where padded."""
    place_T: Tensor
    """(T,) int64: the padded row of a sensor."""

    @classmethod
    def of(cls, segments: Segments) -> Padding:
        """Padding for segments. Reads the lengths of the events from the device: the host waits once."""
        device, num_sensors = segments.event_P.device, segments.num_particles
        counts_E = segments.counts_E.cpu()
        on_cpu = device.type == "cpu"
        groups, sources, first_row = [], [torch.empty(0, dtype=torch.int64, device=device)], 0
        for of_group in _groups(counts_E, one=not on_cpu):
            longest = int(counts_E[of_group].max())
            events_G = of_group.to(device)
            inside_N = torch.arange(longest, device=device)
            present_GN = inside_N < segments.counts_E[events_G].unsqueeze(1)
            source_GN = torch.where(present_GN, segments.starts_E[events_G].unsqueeze(1) + inside_N, 0)
            groups.append(PaddedGroup(first_row, present_GN))
            sources.append(source_GN.flatten())
            first_row += present_GN.numel()
        source_R = torch.cat(sources)
        present_R = torch.cat(
            [torch.empty(0, dtype=torch.bool, device=device), *(g.present_GN.flatten() for g in groups)]
        )
        rows_T = (
            present_R.nonzero().squeeze(1) if on_cpu else torch.nonzero_static(present_R, size=num_sensors).squeeze(1)
        )
        place_T = torch.empty(num_sensors, dtype=torch.int64, device=device)
        place_T[source_R[rows_T]] = rows_T
        return cls(tuple(groups), source_R, present_R.unsqueeze(1), place_T)

    def padded(self, rows_TD: Tensor) -> list[Tensor]:
        """Rows of each group, arbitrary where padded. (T, D) -> (G, N, D) for each group.

        Results must not depend on padded rows: their gradient is not propagated.
        """
        padded_RD: Tensor = _Pad.apply(rows_TD, self.source_R, self.present_R1, self.place_T)
        return [
            padded_RD[group.first_row : group.first_row + group.num_rows].unflatten(0, group.present_GN.shape)
            for group in self.groups
        ]

    def packed(self, groups_GND: Sequence[Tensor]) -> Tensor:
        """Rows of all sensors, in their order. (G, N, D) for each group -> (T, D). There must be a group."""
        padded_RD = torch.cat([group_GND.flatten(0, 1) for group_GND in groups_GND])
        packed_TD: Tensor = _Unpad.apply(padded_RD, self.source_R, self.present_R1, self.place_T)
        return packed_TD


def _groups(counts_E: Tensor, *, one: bool) -> Iterator[Tensor]:
    """Events with sensors, of similar length each. ``one``: all at once, as small kernels cost a GPU more than padding
    does, unless a long event would pad too many others."""
    (present,) = (counts_E > 0).nonzero(as_tuple=True)
    if len(present) == 0:
        return
    most = int(counts_E.max())
    if one and len(present) * most**2 <= _PAIRS_OF_ONE_GROUP:
        yield present
        return
    longest = torch.tensor(_longest_of_groups(most))
    group_of = torch.bucketize(counts_E[present], longest)
    order = group_of.argsort(stable=True)
    yield from (events for events in present[order].split(group_of.bincount().tolist()) if len(events))


class _Pad(torch.autograd.Function):
    """Padding. Both directions read whole rows, which is faster than adding them up, and deterministic on CUDA."""

    @staticmethod
    def forward(ctx: Any, rows_TD: Tensor, source_R: Tensor, present_R1: Tensor, place_T: Tensor) -> Tensor:
        ctx.save_for_backward(source_R, present_R1, place_T)
        return rows_TD.index_select(0, source_R)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        source_R, present_R1, place_T = ctx.saved_tensors
        rows_TD: Tensor = _Unpad.apply(gradients[0], source_R, present_R1, place_T)
        return rows_TD, None, None, None


class _Unpad(torch.autograd.Function):
    """Transpose of the padding, for gradients that are 0 where padded."""

    @staticmethod
    def forward(ctx: Any, padded_RD: Tensor, source_R: Tensor, present_R1: Tensor, place_T: Tensor) -> Tensor:
        ctx.save_for_backward(source_R, present_R1, place_T)
        return padded_RD.index_select(0, place_T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        source_R, present_R1, place_T = ctx.saved_tensors
        padded_RD: Tensor = _Pad.apply(gradients[0], source_R, present_R1, place_T)
        return padded_RD * present_R1, None, None, None
