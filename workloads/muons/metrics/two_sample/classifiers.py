"""Metrics of trained classifiers, with their deviations by chance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from workloads.muons.metrics.bootstrap import WeightSets
from workloads.muons.metrics.bundles import Float64
from workloads.muons.metrics.comparison import Comparison
from workloads.muons.metrics.settings import EvaluationSettings
from workloads.muons.metrics.two_sample.classifier_test import attention_test, set_test, summary_test

Step = Callable[[float], None]

_MIN_SHOWERS = 100
_TESTS = {
    "c2st_summary_auc": (summary_test, 0.1),
    "c2st_auc": (set_test, 0.6),
    "c2st_attention_auc": (attention_test, 0.3),
}
"""Classifier test and its share of the time, by the name of the metric."""


def classifier_metrics(
    paired: Comparison, settings: EvaluationSettings, weights: WeightSets, step: Step
) -> tuple[dict[str, Float64], dict[str, float]]:
    """AUCs for each set of weights, and their deviations; none with too few showers, or without muons in one sample.

    A deviation is the standard deviation from 1/2 for two samples that are alike, which needs no training.
    """
    a, b = paired.a, paired.b
    if len(np.unique(a.shower_E)) < _MIN_SHOWERS or not (len(a.bundles.filled_F) and len(b.bundles.filled_F)):
        return {}, {}
    found, chance = {}, {}
    begin = 0.0
    for name, (make, share) in _TESTS.items():
        test = make(a, b, settings, _part(step, begin, share))
        found[name] = np.concatenate([test(*paired.weights(weights_BE)) for weights_BE in weights])
        chance[name] = test.chance(a, b)
        begin += share
    step(1.0)
    return found, chance


def _part(step: Step, begin: float, share: float) -> Step:
    """Callback for a part of a step."""
    return lambda part: step(begin + share * part)
