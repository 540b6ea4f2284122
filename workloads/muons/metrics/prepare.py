"""Selection of the events of an evaluation. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from workloads.base.random_streams import numpy_stream
from workloads.muons.metrics.bundles import Bool, BundleArrays, Float64
from workloads.muons.metrics.sample import Sample
from workloads.muons.metrics.settings import EvaluationSettings
from workloads.muons.metrics.splits import at_most
from workloads.muons.purposes import MuonPurpose


@dataclass(frozen=True)
class Prepared:
    """Selected events: of positive weight, at most the wanted number, with finite muons."""

    real: Sample
    generated: Sample
    independent: Sequence[Callable[[], BundleArrays]]
    """Redraws of all events, not selected yet."""
    pit_E: Float64 | None
    notes: tuple[str, ...]
    """Remarks on the selection for the reader."""
    chosen_E: Bool
    """Mask of the selected events among all."""

    def chosen(self, redraw: BundleArrays) -> BundleArrays:
        """Selected events of a redraw. Raises ValueError if it is of another number of events."""
        if len(redraw) != len(self.chosen_E):
            raise ValueError(f"independent: {len(redraw)} events, but there are {len(self.chosen_E)} real ones")
        return redraw.only(self.chosen_E).finite()[0]


def prepare(
    real: Sample,
    generated: BundleArrays,
    independent: Sequence[Callable[[], BundleArrays]],
    pit_E: Float64 | None,
    settings: EvaluationSettings,
) -> Prepared:
    """Selected events; for the arguments see workloads.muons.metrics.evaluate.evaluate."""
    _check(real, generated, pit_E)
    notes = []
    chosen_E = at_most(real.shower_E, settings.max_events, numpy_stream(MuonPurpose.EVENTS, settings.seed))
    if not chosen_E.all():
        notes.append(f"{chosen_E.sum()} of {len(chosen_E)} events were looked at, whole showers chosen at random")
    if (weightless_E := chosen_E & (real.weights_E == 0)).any():
        notes.append(f"{weightless_E.sum()} events of weight 0 were left out")
        chosen_E &= ~weightless_E
    real = real.only(chosen_E)
    if len(np.unique(real.shower_E)) < 2:
        raise ValueError("fewer than two showers")

    def cleaned(what: str, bundles: BundleArrays) -> Sample:
        finite, num_bad = bundles.finite()
        if num_bad:
            notes.append(f"{num_bad} {what} muons were not finite, and were left out")
        return real.with_bundles(finite)

    return Prepared(
        real=cleaned("real", real.bundles),
        generated=cleaned("generated", generated.only(chosen_E)),
        independent=independent,
        pit_E=None if pit_E is None else pit_E[chosen_E],
        notes=tuple(notes),
        chosen_E=chosen_E,
    )


def _check(real: Sample, generated: BundleArrays, pit_E: Float64 | None) -> None:
    """Check lengths and weights. Raises ValueError."""
    for what, one in (("generated", generated), ("pit_E", pit_E)):
        if one is not None and len(one) != len(real):
            raise ValueError(f"{what}: {len(one)} events, but there are {len(real)} real ones")
    if not (np.isfinite(real.weights_E).all() and (real.weights_E >= 0).all()):
        raise ValueError("an event's weight is negative or not finite")
