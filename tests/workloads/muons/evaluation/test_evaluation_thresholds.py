"""Limits and verdicts: what is kept, what is missed, and how it is told."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from common.errors import BadInputError
from workloads.base.report.beside import Beside
from workloads.base.report.html import page
from workloads.base.report.metric import Metric
from workloads.base.report.numbers import floor_with_error, plain, with_error
from workloads.base.report.outcome import MetricReport, Outcome
from workloads.base.report.text import lines
from workloads.base.report.thresholds import Threshold, missed, read_thresholds
from workloads.base.report.verdict import ratio, verdict
from workloads.muons.evaluation.words import WORDS
from workloads.muons.metrics.definitions import DEFINITIONS

METRICS = {
    "count_tv": Metric(0.03, 0.001, 0.01, better="lower"),
    "c2st_auc": Metric(0.48, 0.005, 0.5, better="half"),
    "count_mean_ratio": Metric(0.95, 0.01, 1.01, better="one"),
    "count_empty_difference": Metric(-0.02, 0.001, 0.003, better="zero"),
    "fpd": Metric(math.nan, math.nan, math.nan),
}


def limits(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    return missed(read_thresholds(path, DEFINITIONS), METRICS)


@pytest.mark.parametrize(
    "kept",
    [
        "count_tv = 0.03",
        "c2st_auc = 0.52",
        "count_mean_ratio = 0.051",
        "count_empty_difference = 0.02",
        "count_tv = { max = 0.03, min = 0, floors = 3.01 }",
        "count_mean_ratio = { min = 0.95 }",
        "[count_tv]\nfloors = 4",
    ],
)
def test_a_limit_that_is_kept_is_not_told(tmp_path: Path, kept: str) -> None:
    assert limits(tmp_path, kept) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("count_tv = 0.029", {"count_tv": "0.0300, limit 0.029"}),
        ("c2st_auc = { max = 0.47 }", {"c2st_auc": "0.480, limit 0.47"}),
        ("count_mean_ratio = 0.04", {"count_mean_ratio": "0.0500 away from 1, limit 0.04"}),
        ("count_empty_difference = 0.01", {"count_empty_difference": "0.0200 away from 0, limit 0.01"}),
        ("count_mean_ratio = { min = 0.96 }", {"count_mean_ratio": "0.950, at least 0.96 wanted"}),
        ("count_tv = { floors = 2 }", {"count_tv": "ratio 3.00, limit 2"}),
        ("fpd = 1000", {"fpd": "it could not be measured"}),
        ("kpd = 1000", {"kpd": "it could not be measured"}),
        ("count_tv = 0.01\nfpd = 1", {"count_tv": "0.0300, limit 0.01", "fpd": "it could not be measured"}),
    ],
)
def test_a_limit_that_is_missed_is_told_with_value_and_limit(tmp_path: Path, text: str, told: dict[str, str]) -> None:
    assert limits(tmp_path, text) == told


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no threshold in it"),
        ("count_tw = 0.1", "unknown metric 'count_tw'; did you mean 'count_tv'?"),
        ("tv_of_the_whole_sample_and_more = 0.1", "unknown metric 'tv_of_the_whole_sample_and_more'; did you mean 'c"),
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
    assert math.isnan(ratio(METRICS["fpd"]))
    assert math.isnan(ratio(Metric(0.1, 0.01, -0.001)))
    assert verdict(Metric(0.012, 0.0011, 0.01)) == "at floor"
    assert verdict(Metric(0.012, 0.0009, 0.01)) == "near"
    assert verdict(Metric(0.021, 0.0009, 0.01)) == "off"
    assert verdict(Metric(0.012, math.nan, 0.01)) == "near"
    assert verdict(METRICS["fpd"]) == "no floor"


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
    assert math.isnan(ratio(none))


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
    assert with_error(Metric(0.0123456, 0.00123, 0.0)) == "0.0123 ± 0.0012"
    assert with_error(Metric(-12.3456, 1.23, 0.0)) == "-12.3 ± 1.2"
    assert with_error(Metric(1234.5, 123.0, 0.0)) == "1234 ± 123"
    assert with_error(Metric(1.2e-7, 3.4e-8, 0.0)) == "1.2e-07 ± 3.4e-08"
    assert with_error(Metric(0.5, math.nan, 0.0)) == "0.500"
    assert with_error(Metric(math.nan, math.nan, 0.0)) == plain(math.inf) == "–"


def test_the_table_begins_with_the_headline_metrics_and_ends_with_the_notes() -> None:
    sizes = {"events": 1000, "muons_real": 5000, "muons_generated": 4900}
    report = MetricReport(METRICS, sizes, "same primaries", ("something to know",))
    about = {"model": "wgan", "checkpoint": "runs/demo/checkpoints/best.pt", "step": 1560}
    told = list(lines(Outcome(report, [], about, {}, []), WORDS))
    assert told[0] == "Evaluation: runs/demo, step 1,560"
    assert told[1].startswith("off: ")
    told = told[2:]
    names = [line.split()[0] for line in told if line.split() and line.split()[0] in DEFINITIONS]
    assert names == ["count_tv", "count_mean_ratio", "c2st_auc", "count_empty_difference", "fpd"]
    assert told[-1] == "note: something to know"
    assert "1,000 events, 5,000 real and 4,900 generated muons; floor: same primaries" in told
    columns = {line.index("±") for line in told if "±" in line}
    assert len(columns) <= 3, "aligned to the right, errors of like widths below each other"
    assert set(WORDS.headline) <= set(DEFINITIONS)


def test_what_only_the_run_beside_has_is_shown_behind_the_metrics_of_the_first() -> None:
    """The first has no muon, and no row of its own for what is told of muons."""
    first = {name: METRICS[name] for name in ("count_tv", "count_empty_difference")}
    also = {"log10_energy_w1": Metric(0.02, 0.001, 0.012, "dex", floor_spread=0.001), "count_tv": METRICS["count_tv"]}
    about = {"checkpoint": "a.pt", "model": "wgan", "step": 3, "date": "today"}
    sizes = {"events": 1000, "muons_real": 5000, "muons_generated": 0}
    beside = Beside(about | {"model": "likelihood"}, also)
    outcome = Outcome(MetricReport(first, sizes, "same primaries"), [], about, {}, [], beside)
    told = [line.split() for line in lines(outcome, WORDS)]
    rows = [row for row in told if row and row[0] in DEFINITIONS]
    assert [row[0] for row in rows] == ["count_tv", "log10_energy_w1", "count_empty_difference"]
    row = "log10_energy_w1 – 0.0120 ± 0.0010 – dex – 0.0200 ± 0.0010 near"
    assert " ".join(rows[1]) == row
    text = page(outcome, WORDS)
    assert all(f"<code>{name}</code>" in text for name in (*first, *also))
    assert "0 of 1</b>" in text, "headline metrics of the first; its missing one counts for nothing"
    assert "0 of 2</b>" in text


def test_a_limit_of_a_metric_whose_best_value_is_two_is_its_distance_from_two() -> None:
    metric = {"pull": Metric(1.7, 0.01, 2.0, better="two")}
    assert missed({"pull": Threshold(plain=0.31)}, metric) == {}
    assert missed({"pull": Threshold(plain=0.2)}, metric) == {"pull": "0.300 away from 2, limit 0.2"}
    assert verdict(metric["pull"]) == "off"


def test_a_difference_that_is_0_as_its_floor_is_keeps_every_limit(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("count_empty_difference = { floors = 3 }")
    metric = Metric(0.0, 0.0, floor=0.0, better="zero", floor_error=0.0, floor_spread=0.0)
    assert missed(read_thresholds(path, DEFINITIONS), {"count_empty_difference": metric}) == {}
