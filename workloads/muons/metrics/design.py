"""Design of an evaluation: the pairs of samples that are compared. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.muons.metrics.comparison import Comparison
from workloads.muons.metrics.metrics import PANEL_SPLITS
from workloads.muons.metrics.prepare import Prepared
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
    of_real: tuple[Comparison, ...]
    """Real with real events, for floors."""
    same_primaries: bool


def design(given: Prepared, settings: EvaluationSettings) -> Design:
    """Design with independent events for the same primaries, if there are any; else with disjoint showers."""
    real, generated = given.real, given.generated
    all_E = np.ones(len(real), np.bool_)
    paired = Comparison(real, generated, all_E, all_E)
    if given.independent is not None:
        return Design(paired, (paired,), (Comparison(real, given.independent, all_E, all_E),), True)
    of_generated = tuple(
        Comparison(real.only(one), generated.only(~one), one, ~one)
        for first in halves(real.shower_E, PANEL_SPLITS, settings.seed)
        for one in (first, ~first)
    )
    of_real = tuple(
        Comparison(real.only(first), real.only(~first), first, ~first)
        for first in halves(real.shower_E, settings.floor_splits, settings.seed)
    )
    return Design(paired, of_generated, of_real, False)
