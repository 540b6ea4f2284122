"""Design of an evaluation: the pairs of samples that are compared. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from workloads.muons.metrics.bundles import Bool, BundleArrays
from workloads.muons.metrics.comparison import Comparison
from workloads.muons.metrics.metrics import PANEL_SPLITS
from workloads.muons.metrics.prepare import Prepared
from workloads.muons.metrics.sample import Sample
from workloads.muons.metrics.settings import EvaluationSettings
from workloads.muons.metrics.splits import halves


@dataclass(frozen=True)
class Design:
    """Comparisons of an evaluation. Generated events are compared in the same way as real ones for the floor.

    Distances of finite samples are never 0: both need as many events, and primaries that differ as much.
    """

    paired: Comparison
    """All real with all generated events, for the same primaries: for metrics that chance does not increase."""
    of_generated: tuple[Comparison, ...]
    """Real with generated events, for distances: their mean is reported."""
    of_real: tuple[Callable[[], Comparison], ...]
    """Real with real events, for floors; each made when it is wanted, because all may not fit in memory."""
    same_primaries: bool

    @property
    def averaged(self) -> int:
        """Number of independent comparisons in the mean that is reported: both ways round are not."""
        return 1 if self.same_primaries else PANEL_SPLITS


def design(given: Prepared, settings: EvaluationSettings) -> Design:
    """Design with independent events for the same primaries, if there are any; else with disjoint showers."""
    real, generated = given.real, given.generated
    all_E = np.ones(len(real), np.bool_)
    paired = Comparison(real, generated, all_E, all_E)
    if given.independent:
        redraws = tuple(partial(_redrawn, given, draw) for draw in given.independent)
        return Design(paired, (paired,), redraws, True)
    of_generated = tuple(
        _halved(real, generated, one)
        for first in halves(real.shower_E, PANEL_SPLITS, settings.seed)
        for one in (first, ~first)
    )
    of_real = tuple(
        partial(_halved, real, real, first) for first in halves(real.shower_E, settings.floor_splits, settings.seed)
    )
    return Design(paired, of_generated, of_real, False)


def _redrawn(given: Prepared, draw: Callable[[], BundleArrays]) -> Comparison:
    all_E = np.ones(len(given.real), np.bool_)
    return Comparison(given.real, given.real.with_bundles(given.chosen(draw())), all_E, all_E)


def _halved(real: Sample, other: Sample, first_E: Bool) -> Comparison:
    """One half of the real events, and those of ``other`` for the primaries of the other half."""
    return Comparison(real.only(first_E), other.only(~first_E), first_E, ~first_E)
