"""A report of a perfect generator, and of generators with one thing wrong that a named metric has to catch."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import drawn_again, real_sample

from services.physics.definitions import DEFINITIONS, TARGETS
from services.physics.evaluate import evaluate
from services.physics.report import Metric
from services.physics.settings import EvaluationSettings

QUICK = EvaluationSettings(bootstraps=20, c2st=False)
REAL = real_sample(2_000)
AGAIN = drawn_again(REAL, 2)


def silent(what: str, part: float) -> None:
    """No progress."""


def off(metric: Metric, value: float) -> float:
    """How far a value is from the best one."""
    return abs(value - TARGETS.get(metric.better, 0.0))


def caught(metric: Metric) -> bool:
    """Far above what a perfect generator has."""
    return off(metric, metric.value) > off(metric, metric.floor) + 5 * metric.error


@pytest.mark.parametrize("floor_kind", ["same primaries", "disjoint showers"])
def test_every_metric_is_told_with_error_and_floor_and_a_perfect_generator_is_not_caught(floor_kind: str) -> None:
    real = real_sample(6_000)
    independent = drawn_again(real, 3) if floor_kind == "same primaries" else None
    pit_E = np.random.default_rng(0).random(len(real))
    report = evaluate(real, drawn_again(real, 2), independent=independent, pit_E=pit_E, settings=QUICK, progress=silent)
    assert list(report.metrics) == [name for name in DEFINITIONS if not name.startswith("c2st")]
    for name, metric in report.metrics.items():
        assert metric.error > 0, name
        assert np.isfinite(metric.floor), name
        assert not caught(metric), name
    assert report.floor_kind == floor_kind
    assert report.notes == ()
