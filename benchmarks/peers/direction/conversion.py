"""Pulses of a batch as GraphNeT reads them: the columns of Kaggle's "IceCube - Neutrinos in Deep Ice".

Shape suffixes: E events with pulses, P pulses, S sensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from workloads.direction.light import reference_times

COLUMNS = ("x", "y", "z", "time", "charge", "auxiliary")
"""Columns of `KagglePulses.values_P6` as GraphNeT's detector `IceCubeKaggle` names them: m, ns, PE, 0 or 1."""

TRIGGER_NS = 1e4
"""Time in Kaggle's events about which the light is: `IceCubeKaggle` takes it away."""

LEAST_CHARGE_PE = 0.01
"""Charge that smaller ones count as: `IceCubeKaggle` takes the logarithm."""


class Events(Protocol):
    """What is read of a batch; icestream.RaggedBatch has it."""

    @property
    def events(self) -> Mapping[str, Tensor]:
        """Columns of events, (E, F)."""

    @property
    def particles(self) -> Mapping[str, Tensor]:
        """Columns of pulses, (P, F)."""

    @property
    def offsets(self) -> Tensor:
        """First pulse of each event, and the number of pulses: (E + 1,)."""


@dataclass(frozen=True)
class KagglePulses:
    """Pulses of the events that have any."""

    values_P6: Tensor
    event_P: Tensor
    """Number of each pulse's event among those that have pulses."""
    counts_E: Tensor
    direction_E3: Tensor
    """Direction in which the neutrino's source lies, unit vectors."""

    @classmethod
    def of(cls, batch: Events, position_S3: Tensor, *, most: int = 0, stretch: float = 1.0) -> KagglePulses:
        """Return the pulses of a batch, in their order.

        Of an event with more than ``most`` pulses (0: no limit) a random sample is kept, of auxiliary ones only what
        the others leave room for, as the second place of Kaggle's competition and GraphNeT's IceMixNodes do. Times are
        moved so that the median time of an event's pulses that are not auxiliary is TRIGGER_NS, and stretched about it.
        """
        counts_E = batch.offsets.diff()
        num_pulses = int(batch.offsets[-1])
        event_P = torch.repeat_interleave(torch.arange(len(counts_E)), counts_E, output_size=num_pulses)
        auxiliary_P = batch.particles["auxiliary"][:, 0]
        time_P, charge_P = batch.particles["pulses"].unbind(1)
        time_P = time_P - reference_times(time_P, ~auxiliary_P, batch.offsets)[event_P]
        time_P = stretch * time_P + TRIGGER_NS
        columns = (time_P, charge_P.clamp_min(LEAST_CHARGE_PE), auxiliary_P.float())
        values_P6 = torch.cat([position_S3[batch.particles["sensor"][:, 0].long()], torch.stack(columns, 1)], 1)
        if most and bool((counts_E > most).any()):
            kept_P = sample(batch.offsets, auxiliary_P, most)
            values_P6, event_P = values_P6[kept_P], event_P[kept_P]
            counts_E = counts_E.clamp_max(most)
        has_pulses = counts_E > 0
        number_E = has_pulses.cumsum(0) - 1
        direction_E3 = batch.events["source_direction"][has_pulses]
        return cls(values_P6, number_E[event_P], counts_E[has_pulses], direction_E3)

    def by_size(self, parts: int) -> Iterator[tuple[Tensor, KagglePulses]]:
        """Yield the events in parts, those with the fewest pulses first, so that less is padded: (numbers, pulses)."""
        first_E = self.counts_E.cumsum(0) - self.counts_E
        for events in self.counts_E.argsort(stable=True).tensor_split(parts):
            counts_E = self.counts_E[events]
            event_P = torch.repeat_interleave(torch.arange(len(events)), counts_E)
            place_P = torch.arange(len(event_P)) - (counts_E.cumsum(0) - counts_E)[event_P]
            values_P6 = self.values_P6[first_E[events][event_P] + place_P]
            yield events, KagglePulses(values_P6, event_P, counts_E, self.direction_E3[events])


def sample(offsets_E1: Tensor, auxiliary_P: Tensor, most: int) -> Tensor:
    """Return the places of at most ``most`` pulses of each event, in order: the others first, then auxiliary ones."""
    counts_E = offsets_E1.diff()
    event_P = torch.repeat_interleave(torch.arange(len(counts_E)), counts_E)
    # Order by event, then auxiliary or not, then at random; what is behind the first `most` of an event is left out.
    key_P = 2 * event_P.double() + auxiliary_P.double() + torch.rand(len(event_P), dtype=torch.float64)
    order_P = key_P.argsort()
    rank_P = torch.arange(len(event_P)) - offsets_E1[:-1][event_P]
    return order_P[rank_P < most].sort().values
