"""What a report says at its end and in its heads: of one run, of two models, of two runs of one model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from workloads.base.report.at_floor import conclusion, not_at_floor, title
from workloads.base.report.beside import Beside, names
from workloads.base.report.html import page
from workloads.base.report.metric import Metric
from workloads.base.report.numbers import ratio_text, verdict_text
from workloads.base.report.outcome import MetricReport, Outcome
from workloads.muons.evaluation.words import WORDS

AT_FLOOR, OFF, NO_FLOOR = Metric(0.1, 0.01, 0.1), Metric(0.9, 0.01, 0.1), Metric(0.1, 0.01, math.nan)
OWN = {"checkpoint": "runs/a/checkpoints/best.pt", "model": "wgan", "step": 7, "date": "today"}
OTHER = {"checkpoint": "runs/b/checkpoints/best.pt", "model": "likelihood", "step": 8}
ALL_OFF = {"count_tv": OFF, "c2st_auc": OFF, "x_m_w1": AT_FLOOR}
NONE_OFF = {"count_tv": AT_FLOOR, "c2st_auc": AT_FLOOR, "x_m_w1": AT_FLOOR}


def outcome_of(metrics: Mapping[str, Metric], beside: Beside | None = None) -> Outcome:
    sizes = {"events": 1000, "muons_real": 5000, "muons_generated": 4900}
    return Outcome(MetricReport(metrics, sizes, "same primaries"), [], OWN, {}, [], beside)


def test_one_run_ends_with_its_own_numbers() -> None:
    assert conclusion(outcome_of(ALL_OFF | {"fpd": NO_FLOOR}), WORDS) == [
        "headline metrics at floor: 0 of 2 (all: 1 of 3)"
    ]
    assert conclusion(outcome_of({"count_tv": NO_FLOOR}), WORDS) == []


def test_two_models_end_with_the_numbers_of_both_and_a_hint() -> None:
    told = conclusion(outcome_of(ALL_OFF, Beside(OTHER, NONE_OFF)), WORDS)
    assert told == [
        "headline metrics at floor: wgan 0 of 2, likelihood 2 of 2 (all: 1 and 3 of 3)",
        "which model for what: docs/explanation/models.md",
    ]
    more = conclusion(outcome_of(ALL_OFF, Beside(OTHER, NONE_OFF | {"y_m_w1": OFF})), WORDS)
    assert more[0].endswith("(all: 1 of 3 and 3 of 4)")


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("runs/a/checkpoints/best.pt", "runs/b/checkpoints/best.pt", ("a", "b")),
        ("runs/a/checkpoints/best.pt", "runs/a/checkpoints/step-1.pt", ("best.pt", "step-1.pt")),
        (
            "x/run/checkpoints/best.pt",
            "y/run/checkpoints/best.pt",
            ("x/run/checkpoints/best.pt", "y/run/checkpoints/best.pt"),
        ),
        ("x/best.pt", "y/best.pt", ("x", "y")),
    ],
)
def test_two_runs_of_one_model_are_named_by_their_folders(first: str, second: str, told: tuple[str, str]) -> None:
    beside = Beside(OTHER | {"model": "wgan", "checkpoint": second}, NONE_OFF)
    assert names(OWN | {"checkpoint": first}, beside) == told
    assert names(OWN, replace(beside, provenance=OTHER)) == ("wgan", "likelihood")


def test_the_page_says_of_how_many_events_and_which_run_is_drawn() -> None:
    alone = page(outcome_of(ALL_OFF), WORDS)
    assert "headline metrics at the floor of 1,000 events; smaller differences are not seen" in alone
    assert "orange: generated, for the same primaries" in alone
    assert "docs/explanation/models.md" not in alone
    both = page(outcome_of(ALL_OFF, Beside(OTHER, NONE_OFF)), WORDS)
    assert "orange: wgan (the run beside is not drawn), for the same primaries" in both
    assert "docs/explanation/models.md" in both


def test_a_ratio_of_hundreds_is_told_as_more_than_a_hundred() -> None:
    assert [ratio_text(Metric(value, 0.01, 0.01)) for value in (0.01, 0.25, 1.0, 1.01)] == [
        "1.00",
        "25",
        "100",
        "> 100",
    ]


def test_a_ratio_to_a_floor_that_may_be_zero_is_not_told_and_contradicts_no_verdict() -> None:
    unsure = Metric(0.0048, 0.001, 0.001, floor_spread=0.002)
    assert (ratio_text(unsure), verdict_text(unsure)) == ("–", "at floor")
    sure = Metric(0.0048, 0.001, 0.001, floor_spread=0.0001)
    assert (ratio_text(sure), verdict_text(sure)) == ("4.80", "off")


def test_the_report_says_first_what_failed() -> None:
    assert not_at_floor(outcome_of(ALL_OFF), WORDS) == "off: count_tv, c2st_auc"
    assert not_at_floor(outcome_of(NONE_OFF), WORDS) == "all headline metrics are at their floor"
    assert not_at_floor(outcome_of({"count_tv": NO_FLOOR}), WORDS) == ""
    missed = replace(outcome_of(ALL_OFF), missed={"count_tv": "0.3 > 0.1"}, warnings=["a warning"])
    html = page(missed, WORDS)
    places = [html.index(text) for text in ("<h1>Evaluation: runs/a, step 7</h1>", "Threshold missed", "Off: count_tv")]
    assert places == sorted(places)
    assert places[-1] < html.index("a warning") < html.index("<h2>Numbers</h2>")


def test_a_checkpoint_outside_of_a_run_is_its_own_title() -> None:
    assert (
        title(replace(outcome_of(ALL_OFF), provenance=OWN | {"checkpoint": "x/a.pt"})) == "Evaluation: x/a.pt, step 7"
    )
