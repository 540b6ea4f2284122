"""Reports: limits and verdicts, the table, the page, and what it says at its end."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import BadInputError
from workloads.base.report.metric import (
    Metric,
    Threshold,
    fault_words,
    floor_with_error,
    is_nearer,
    missed,
    multiples,
    plain,
    ratio,
    read_thresholds,
    verdict,
    verdict_text,
    with_error,
)
from workloads.base.report.page import Beside, MetricReport, Outcome, decision, lines, names, page
from workloads.muons.evaluation import WORDS
from workloads.muons.metrics.evaluate import DEFINITIONS

METRICS = {
    "count_tv": Metric(0.03, 0.001, 0.01, better="lower"),
    "c2st_auc": Metric(0.48, 0.005, 0.5, better="half"),
    "count_mean_ratio": Metric(0.95, 0.01, 1.01, better="one"),
    "count_empty_difference": Metric(-0.02, 0.001, 0.003, better="zero"),
    "decoherence_m_w1": Metric(math.nan, math.nan, math.nan),
}


def limits(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    return missed(read_thresholds(path, DEFINITIONS), METRICS)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        *((kept, {}) for kept in ("count_tv = 0.03", "c2st_auc = 0.52", "count_mean_ratio = 0.051")),
        *((kept, {}) for kept in ("count_empty_difference = 0.02", "count_mean_ratio = { min = 0.95 }")),
        *((kept, {}) for kept in ("count_tv = { max = 0.03, min = 0, floors = 3.01 }", "[count_tv]\nfloors = 4")),
        ("count_tv = 0.029", {"count_tv": "0.0300, limit 0.029"}),
        ("c2st_auc = { max = 0.47 }", {"c2st_auc": "0.480, limit 0.47"}),
        ("count_mean_ratio = 0.04", {"count_mean_ratio": "0.0500 away from 1, limit 0.04"}),
        ("count_empty_difference = 0.01", {"count_empty_difference": "0.0200 away from 0, limit 0.01"}),
        ("count_mean_ratio = { min = 0.96 }", {"count_mean_ratio": "0.950, at least 0.96 wanted"}),
        ("count_tv = { floors = 2 }", {"count_tv": "ratio 3.00, limit 2"}),
        ("decoherence_m_w1 = 1000", {"decoherence_m_w1": "it could not be measured"}),
        ("x_m_w1 = 1000", {"x_m_w1": "it could not be measured"}),
        (
            "count_tv = 0.01\ndecoherence_m_w1 = 1",
            {"count_tv": "0.0300, limit 0.01", "decoherence_m_w1": "it could not be measured"},
        ),
    ],
)
def test_a_limit_that_is_missed_alone_is_told_with_value_and_limit(
    tmp_path: Path, text: str, told: dict[str, str]
) -> None:
    assert limits(tmp_path, text) == told


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no threshold in it"),
        ("count_tw = 0.1", "unknown metric 'count_tw'; did you mean 'count_tv'?"),
        ("zzz = 0.1", r"unknown metric .*; the report\.json of an evaluation has all \d+ names"),
        ("count_tv = 'low'", "count_tv = 'low': expected a number, or a table with max, min, floors"),
        ("count_tv = true", "expected a number"),
        ("count_tv = nan", "expected a number"),
        (f"count_tv = 1{'0' * 400}", "expected a number"),
        ("count_tv = { most = 1 }", "expected a number, or a table"),
        ("count_tv = {}", "expected a number, or a table"),
        ("count_tv: 1", "not TOML"),
    ],
)
def test_a_threshold_file_that_says_nothing_sensible_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(BadInputError, match=rf"limits\.toml: .*{reason}"):
        limits(tmp_path, text)


def test_a_threshold_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none\.toml: no such threshold file"):
        read_thresholds(tmp_path / "none.toml", DEFINITIONS)
    with pytest.raises(BadInputError, match="can't be read"):
        read_thresholds(tmp_path, DEFINITIONS)


def test_ratios_and_verdicts_of_distances_count_floors() -> None:
    assert ratio(METRICS["count_tv"]) == pytest.approx(3)
    assert math.isnan(ratio(METRICS["decoherence_m_w1"]))
    assert math.isnan(ratio(Metric(0.1, 0.01, -0.001)))
    assert verdict(Metric(0.012, 0.0011, 0.01)) == "at floor"
    assert verdict(Metric(0.012, 0.0009, 0.01)) == "near"
    assert verdict(Metric(0.021, 0.0009, 0.01)) == "off"
    assert verdict(Metric(0.012, math.nan, 0.01)) == "near"
    assert verdict(METRICS["decoherence_m_w1"]) == "no floor"


def test_ratios_and_verdicts_of_two_sided_metrics_count_standard_deviations_from_the_floor() -> None:
    for better, floor in (("one", 1.03), ("zero", 0.02), ("two", 1.9)):
        for sign in (-1, 1):
            for deviations, told in ((1.9, "at floor"), (2.1, "near"), (3.9, "near"), (4.1, "off")):
                value = floor + sign * deviations * 0.05
                metric = Metric(value, 0.1, floor, "", better, floor_error=0.03, floor_spread=0.04)
                assert ratio(metric) == pytest.approx(deviations)
                assert verdict(metric) == told
    assert ratio(METRICS["count_mean_ratio"]) == pytest.approx(6), "its own error, for no spread is known"
    none = Metric(0.0, 0.0, 1.0, better="one")
    assert verdict(none) == "off", "a tail without muons, and without an error"
    assert (ratio(none), multiples(none)) == (math.inf, ("", "> 100"))


def test_an_auc_below_one_half_is_chance() -> None:
    for value, told, floors in (
        (0.40, "at floor", 0),
        (0.507, "at floor", 1.75),
        (0.512, "near", 3),
        (0.55, "off", 12.5),
    ):
        metric = Metric(value, 0.1, 0.5, "", "half", floor_error=0.0, floor_spread=0.004)
        assert verdict(metric) == told
        assert ratio(metric) == pytest.approx(floors)
    assert missed({"c2st_auc": Threshold(floors=0.1)}, {"c2st_auc": Metric(0.40, 0.1, 0.5, "", "half")}) == {}


def test_the_verdict_takes_the_spread_of_perfect_models_and_the_error_of_the_floor() -> None:
    at_limit = 0.020 + 2 * math.hypot(0.003, 0.004)
    for value, told in ((0.999 * at_limit, "at floor"), (1.001 * at_limit, "near")):
        assert verdict(Metric(value, 0.1, 0.020, floor_error=0.003, floor_spread=0.004)) == told, "not its own error"
        assert verdict(Metric(value, 0.004, 0.020, floor_error=0.003)) == told, "its own, for no spread is known"


def test_a_floor_is_told_with_spread_and_error_together() -> None:
    assert floor_with_error(Metric(0.02, 0.001, 0.0123, floor_error=0.0003, floor_spread=0.0004)) == "0.01230 ± 0.00050"
    assert floor_with_error(Metric(0.02, 0.001, 5.1531, floor_error=0.6755)) == "5.15 ± 0.68"
    assert floor_with_error(Metric(0.02, 0.001, 0.0123)) == "0.0123"
    assert floor_with_error(Metric(0.02, 0.001, math.nan)) == "–"


def test_numbers_are_told_to_the_second_digit_of_their_error() -> None:
    assert with_error(0.0123456, 0.00123) == "0.0123 ± 0.0012"
    assert with_error(-12.3456, 1.23) == "-12.3 ± 1.2"
    assert with_error(1234.5, 123.0) == "1234 ± 123"
    assert with_error(1.2e-7, 3.4e-8) == "1.2e-07 ± 3.4e-08"
    assert with_error(0.5, math.nan) == "0.500"
    assert with_error(math.nan, math.nan) == plain(math.inf) == "–"


def test_the_table_begins_with_the_headline_metrics_and_ends_with_the_notes() -> None:
    sizes = {"events": 1000, "muons_real": 5000, "muons_generated": 4900}
    report = MetricReport(METRICS, sizes, "same primaries", ("something to know",))
    about = {"model": "wgan", "checkpoint": "runs/demo/checkpoints/best.pt", "step": 1560}
    told = list(lines(Outcome(report, [], about, {}, []), WORDS))
    assert told[0] == "Evaluation: runs/demo, step 1,560"
    assert told[1].startswith(
        "Headline metrics at the floor: wgan 1 of 3 (all: 1 of 4); wgan's numbers of muons are 2 % off"
    )
    told = told[2:]
    names = [line.split()[0] for line in told if line.split() and line.split()[0] in DEFINITIONS]
    assert names == ["count_tv", "count_mean_ratio", "c2st_auc", "count_empty_difference", "decoherence_m_w1"]
    assert told[-1] == "note: something to know"
    assert "1,000 events, 5,000 real and 4,900 generated muons; floor: same primaries" in told
    assert told[-2].startswith("× floor: the value of a distance in floors, 1 for a perfect model; σ: distance from")
    columns = {line.index("±") for line in told if "±" in line}
    assert len(columns) <= 3, "aligned to the right, errors of like widths below each other"
    assert set(WORDS.headline) <= set(DEFINITIONS)


def test_what_only_the_run_beside_has_is_shown_behind_the_metrics_of_the_first() -> None:
    """The first has no muon, and no row of its own for what is told of muons."""
    first = {name: METRICS[name] for name in ("count_tv", "count_empty_difference")}
    also = {"log10_energy_w1": Metric(0.02, 0.001, 0.012, "dex", floor_spread=0.001), "count_tv": METRICS["count_tv"]}
    about = {"checkpoint": "a.pt", "model": "wgan", "step": 3, "date": "today"}
    sizes = {"events": 1000, "muons_real": 5000, "muons_generated": 0, "redraws": 4}
    beside = Beside(about | {"model": "likelihood"}, also)
    outcome = Outcome(MetricReport(first, sizes, "same primaries"), [], about, {}, [], beside)
    told = [line.split() for line in lines(outcome, WORDS)]
    rows = [row for row in told if row and row[0] in DEFINITIONS]
    assert [row[0] for row in rows] == ["count_tv", "log10_energy_w1", "count_empty_difference"]
    row = "log10_energy_w1 0.0120 ± 0.0010 dex – dex – 0.0200 ± 0.0010 dex 1.67 8.00 near"
    assert " ".join(rows[1]) == row
    text = page(outcome, WORDS)
    assert "found here with 4 further draws for the same primaries" in text
    assert all(f"<code>{name}</code>" in text for name in (*first, *also))
    assert "wgan 0 of 1 (all: 0 of 2), likelihood 0 of 2 (all: 0 of 2)" in text, "a missing one counts for nothing"


def test_a_difference_that_is_0_as_its_floor_is_keeps_every_limit(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("count_empty_difference = { floors = 3 }")
    metric = Metric(0.0, 0.0, floor=0.0, better="zero", floor_error=0.0, floor_spread=0.0)
    assert missed(read_thresholds(path, DEFINITIONS), {"count_empty_difference": metric}) == {}


AT_FLOOR, OFF, NO_FLOOR = Metric(0.1, 0.01, 0.1), Metric(0.9, 0.01, 0.1), Metric(0.1, 0.01, math.nan)
OWN = {"checkpoint": "runs/a/checkpoints/best.pt", "model": "wgan", "step": 7, "date": "today"}
OTHER = {"checkpoint": "runs/b/checkpoints/best.pt", "model": "likelihood", "step": 8}
ALL_OFF = {"count_tv": OFF, "c2st_auc": OFF, "x_m_w1": AT_FLOOR}
NONE_OFF = {"count_tv": AT_FLOOR, "c2st_auc": AT_FLOOR, "x_m_w1": AT_FLOOR}
HALF = Metric(0.48, 0.01, 1.0, better="one")


def shifted(shift: float) -> Metric:
    """A distance that is all shift."""
    return Metric(abs(shift), 0.0001, 0.001, "dex", floor_spread=0.0001, shift=shift)


def outcome_of(metrics: Mapping[str, Metric], beside: Beside | None = None) -> Outcome:
    sizes = {"events": 1000, "muons_real": 5000, "muons_generated": 4900, "redraws": 8}
    return Outcome(MetricReport(metrics, sizes, "same primaries"), [], OWN, {}, [], beside)


def test_the_first_sentence_says_what_is_off_in_words_of_physics() -> None:
    off = {"log10_energy_w1": shifted(-0.02), "radius_m_w1": replace(shifted(0.02), unit="m"), "count_mean_ratio": HALF}
    told = "Headline metrics at the floor: wgan 0 of 3 (all: 1 of 4)"
    assert decision(outcome_of(off | {"x_m_w1": AT_FLOOR, "decoherence_m_w1": NO_FLOOR}), WORDS) == (
        f"{told}; wgan's muons are 52 % too few, energies 4.5 % too low, bundles 0.02 m too wide"
    )
    assert decision(outcome_of(NONE_OFF), WORDS).endswith("wgan 2 of 2 (all: 3 of 3); nothing is seen to be off")
    assert decision(outcome_of({"count_tv": NO_FLOOR}), WORDS) == ""
    assert fault_words(shifted(0.5), "too low", "too high") == "a factor of 3.2 too high"
    assert fault_words(replace(shifted(0.02), shift=0.001), "too low", "too high") == "4.5 % off in shape"
    assert fault_words(Metric(121.3, 0.1, 1.0, "°"), "", "above the best") == "120° above the best"


def test_of_two_models_the_sentence_names_the_better_one_first_and_by_how_much() -> None:
    told = decision(outcome_of(ALL_OFF, Beside(OTHER, NONE_OFF)), WORDS)
    assert told == (
        "likelihood is better, nearer to the truth in 2 of 2 headline metrics (wgan in 0); headline metrics at the"
        " floor: likelihood 2 of 2 (all: 3 of 3), wgan 0 of 2 (all: 1 of 3);"
        " wgan's numbers of muons are 80 % off, events 80 % told from real ones by a classifier"
    )
    equal = decision(outcome_of(ALL_OFF, Beside(OTHER, ALL_OFF)), WORDS)
    assert equal.startswith("neither of wgan and likelihood is better: wgan is nearer to the truth in 0 of 2")
    by_one = decision(outcome_of(ALL_OFF, Beside(OTHER, NONE_OFF)), replace(WORDS, decisive="count_tv"))
    assert by_one.startswith("likelihood is better (0.800 ± 0.014 in numbers of muons, 57 σ), nearer to the truth in 2")


def test_a_model_is_nearer_beyond_chance_alone_and_without_a_floor_by_its_value() -> None:
    for value, told in ((0.14, False), (0.15, True)):
        assert is_nearer(Metric(0.1, 0.01, 0.1), Metric(value, 0.01, 0.1)) is told
    assert not is_nearer(Metric(0.05, 0.0, 0.1), Metric(0.1, 0.0, 0.1)), "below the floor is no better than at it"
    assert is_nearer(replace(NO_FLOOR, better="one", value=0.9), replace(NO_FLOOR, better="one", value=1.2))
    draws = np.array([0.09, 0.11])  # of one sample, on which both are small together
    paired = [Metric(value, 0.01, 0.1, better="one", draws=draws + value - 0.1) for value in (0.1, 0.14, 0.05)]
    assert is_nearer(*paired[:2])
    assert not is_nearer(paired[1], paired[2]), "on different sides of the floor, errors add up"


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
    assert names(OWN | {"checkpoint": first}, OWN | {"checkpoint": second}) == told
    assert names(OWN, OTHER) == ("wgan", "likelihood")


def test_the_page_begins_with_the_decision_and_has_both_models_in_its_table_and_a_table_of_contents() -> None:
    html = page(outcome_of(ALL_OFF, Beside(OTHER, NONE_OFF)), WORDS)
    assert re.search(r"<h1>.*</h1>\n<p class=\"decision\">likelihood is better, nearer .*</p>", html)
    heads = "|".join(re.findall(r"<th[^>]*>([^<]*)</th>", html.partition("</thead>")[0]))
    assert heads == "metric|floor ± error|wgan ± error|× floor|σ|verdict|likelihood ± error|× floor|σ|verdict"
    assert '<nav><a href="#numbers">Numbers</a>' in html
    assert ".md" not in html, "a page of the documentation that the report can't link to"


def test_a_ratio_to_a_floor_that_may_be_zero_is_not_told_and_contradicts_no_verdict() -> None:
    unsure = Metric(0.0048, 0.001, 0.001, floor_spread=0.002)
    assert (*multiples(unsure), verdict_text(unsure)) == ("", "1.90", "at floor")
    sure = Metric(0.0048, 0.001, 0.001, floor_spread=0.0001)
    assert (*multiples(sure), verdict_text(sure)) == ("4.80", "38", "off")


def test_the_page_says_what_failed_before_the_numbers() -> None:
    html = page(replace(outcome_of(ALL_OFF), missed={"count_tv": "0.3 > 0.1"}, warnings=["a warning"]), WORDS)
    places = [html.index(text) for text in ("<h1>", "are 80 % off", "Threshold missed", "a warning", "<h2")]
    assert places == sorted(places)
