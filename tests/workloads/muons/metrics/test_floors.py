"""Floors and their errors, and the verdicts on generators that are perfect."""

from __future__ import annotations

import math
import weakref
from functools import partial

import numpy as np
import pytest
from simulated import drawn_again, real_sample

from workloads.base.report.metric import TARGETS, Floor, Metric
from workloads.base.report.verdict import verdict
from workloads.muons.metrics.bundles import BundleArrays, Float64
from workloads.muons.metrics.definitions import DEFINITIONS
from workloads.muons.metrics.evaluate import evaluate
from workloads.muons.metrics.floors import chance_floor, floors_of, null_floor
from workloads.muons.metrics.settings import REDRAWS, EvaluationSettings


def test_the_floor_of_a_distance_is_the_mean_of_all_draws_with_its_error() -> None:
    values = [0.01, 0.02, 0.03, 0.06]
    floor = floors_of([{"count_tv": value} for value in values], averaged=1)["count_tv"]
    assert floor.value == pytest.approx(0.03)
    assert floor.spread == pytest.approx(np.std(values, ddof=1))
    assert floor.error == pytest.approx(floor.spread / 2)


def test_the_floor_of_a_ratio_is_the_mean_of_all_draws_for_they_share_the_real_sample() -> None:
    values = [0.97, 1.04, 0.99, 1.02]
    floor = floors_of([{"count_mean_ratio": value} for value in values], averaged=1)["count_mean_ratio"]
    assert floor.value == pytest.approx(1.005)
    assert floor.spread == pytest.approx(np.std(values, ddof=1))
    assert floor.error == pytest.approx(floor.spread / 2)


VARIANCE = "mean_log10_radius_variance_ratio_at_least_100"


def variance_verdict(real: Float64, generated: Float64, random: np.random.Generator) -> str:
    """Verdict on the variance of generated values, with a floor from redraws of the real ones, which are normal."""
    redraws = random.normal(size=(REDRAWS, len(real)))
    floors = floors_of([{VARIANCE: float(redraw.var() / real.var())} for redraw in redraws], averaged=1)
    return verdict(Metric.of(DEFINITIONS[VARIANCE], float(generated.var() / real.var()), math.nan, floors[VARIANCE]))


def test_a_redraw_is_at_the_floor_of_a_ratio_91_of_100_times() -> None:
    """As Student's t with 7 degrees of freedom, for the deviation is known from 8 draws: 91.4 % within 2."""
    random = np.random.default_rng(0)
    verdicts = [variance_verdict(*random.normal(size=(2, 200)), random) for _ in range(1_000)]
    assert 0.89 < verdicts.count("at floor") / len(verdicts) < 0.94


def test_a_variance_of_six_tenths_is_not_at_the_floor_because_the_real_sample_varies_too_little_by_chance() -> None:
    random = np.random.default_rng(0)
    unlucky = min(random.normal(size=(25, 200)), key=np.var)
    assert 0.6 / unlucky.var() > 0.7, "nearer to 1 than it should be"
    narrow = math.sqrt(0.6) * random.normal(size=(200, 200))
    verdicts = [variance_verdict(unlucky, generated, random) for generated in narrow]
    assert verdicts.count("at floor") < 10


def test_a_value_that_is_a_mean_of_two_comparisons_spreads_less_than_the_floors_one() -> None:
    told = [{"count_tv": value} for value in (0.01, 0.02, 0.03, 0.06)]
    one, two = (floors_of(told, averaged)["count_tv"] for averaged in (1, 2))
    assert two == Floor(one.value, one.error, one.spread / math.sqrt(2))


def test_what_one_comparison_lacks_has_no_floor_and_of_one_there_is_no_spread() -> None:
    found = floors_of([{"count_tv": 0.1, "fpd": 0.2}, {"count_tv": 0.1}], averaged=1)
    assert set(found) == {"count_tv"}
    (one,) = floors_of([{"count_tv": 0.1}], averaged=1).values()
    assert one.value == 0.1
    assert math.isnan(one.spread)
    assert math.isnan(one.error)
    assert math.isnan(null_floor(np.array([0.1])).value)


@pytest.mark.parametrize(("name", "share"), [("count_mean_ratio", 0.954), ("c2st_auc", 0.977)])
def test_a_metric_that_is_off_by_chance_is_at_its_floor(name: str, share: float) -> None:
    """On either side of the best value, or of an AUC above it."""
    definition = DEFINITIONS[name]
    best = TARGETS[definition.better]
    floor = chance_floor(name, 0.01)
    assert floor == Floor(best, 0.0, 0.01)
    drawn = np.random.default_rng(0).normal(best, 0.01, 10_000)
    verdicts = [verdict(Metric.of(definition, value, math.nan, floor)) for value in drawn]
    assert verdicts.count("at floor") / len(verdicts) == pytest.approx(share, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("floor_kind", ["same primaries", "disjoint showers"])
def test_perfect_generators_are_at_the_floor_about_95_of_100_times(floor_kind: str) -> None:
    """Each with real events and redraws of its own: the floor, its error and the spread are all known from 8 draws."""
    settings = EvaluationSettings(bootstraps=20, c2st=False)
    verdicts: dict[str, list[str]] = {}
    for trial in range(20):
        real = real_sample(1_000, seed=500 + trial)
        redraws = [partial(drawn_again, real, 20_000 + 100 * trial + draw) for draw in range(REDRAWS)]
        metrics = evaluate(
            real,
            drawn_again(real, 10_000 + trial),
            independent=redraws if floor_kind == "same primaries" else (),
            pit_E=np.random.default_rng(trial).random(len(real)),
            settings=settings,
            progress=lambda what, part: None,
        ).metrics
        for name, metric in metrics.items():
            verdicts.setdefault(name, []).append(verdict(metric))
    verdicts = {name: found for name, found in verdicts.items() if len(found) == 20 and "no floor" not in found}
    assert len(verdicts) > 30, "all that 1,000 events are enough for, each time"
    at_floor = {name: found.count("at floor") for name, found in verdicts.items()}
    assert 0.90 < sum(at_floor.values()) / (20 * len(verdicts)) < 0.98
    # By chance 14 or fewer of 20 are as rare as 1 of 3,000.
    assert {name: number for name, number in at_floor.items() if number < 15} == {}


def test_redraws_are_made_one_after_the_other_and_kept_no_longer_than_needed() -> None:
    real = real_sample(500)
    made: list[weakref.ref[BundleArrays]] = []

    def redraw(draw: int) -> BundleArrays:
        assert [one() for one in made] == [None] * len(made)
        found = drawn_again(real, 10 + draw)
        made.append(weakref.ref(found))
        return found

    settings = EvaluationSettings(bootstraps=0, c2st=False)
    redraws = [partial(redraw, draw) for draw in range(3)]
    evaluate(
        real,
        drawn_again(real, 2),
        independent=redraws,
        pit_E=None,
        settings=settings,
        progress=lambda what, part: None,
    )
    assert len(made) == 3


def test_a_redraw_of_other_events_is_refused() -> None:
    real = real_sample(50)
    with pytest.raises(ValueError, match="independent: 49 events, but there are 50 real ones"):
        evaluate(
            real,
            real.bundles,
            independent=[lambda: real.bundles.only(np.arange(50) > 0)],
            pit_E=None,
            settings=EvaluationSettings(bootstraps=0, c2st=False),
            progress=lambda what, part: None,
        )
