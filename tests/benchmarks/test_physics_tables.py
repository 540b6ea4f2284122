"""Tables of `make bench-physics`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.physics import keys, precision, runs
from benchmarks.physics.report import BEGIN, END, read_results, write_choice, write_page
from benchmarks.physics.spec import Limit, Row, Run, Table
from benchmarks.physics.tables import markdown, quality_markdown

TINY = Run("tiny", "likelihood")


def made_up(value: float) -> dict:
    return {"values": {"count_tv": [value - 0.01, value + 0.01], "train_cpu_s": [10.0]}}


def test_a_table_has_medians_of_means_the_floor_with_its_spread_and_the_best_in_bold() -> None:
    many = tuple(replace(TINY, name=f"a{seed}", seed=seed) for seed in range(3))
    floor = replace(TINY, name="floor", model="simulator")
    rows = (Row("a", many), Row("b", (replace(TINY, name="b"),)))
    table = Table("t", "Title", "Why?", ("count_tv", "train_cpu_s"), rows, floor)
    results = {f"a{index}": made_up(value) for index, value in enumerate((0.5, 0.1, 0.2))} | {"b": made_up(0.3)}
    results["floor"] = {"values": {"count_tv": [0.01, 0.02, 0.03]}}

    assert markdown(table, results).splitlines()[4:] == [
        "|  | count TV | training, CPU s |",
        "| --- | --- | --- |",
        "| a | **0.2000** | 10 |",
        "| b | 0.3000 | 10 |",
        "| *floor* | 0.0200 ± 0.0100 | – |",
    ]
    del results["b"]
    assert "| b | – | – |" in markdown(table, results)
    assert "1 of 5 runs are not made yet." in markdown(table, results)


def perfect() -> dict[str, dict]:
    """Results of all runs of the first table, within every limit."""
    good = {"c2st_auc_chance": 0.002, "c2st_auc": 0.5, "c2st_attention_auc": 0.5, "events_per_s": 5e5}
    columns = [*runs.QUALITY.columns, *good]
    values = {name: [good.get(name, 1.0 if name.endswith("_ratio") else 0.0)] * 2 for name in columns}
    return {run.name: {"values": dict(values)} for run in runs.QUALITY.runs}


def test_the_first_table_says_which_limits_are_missed() -> None:
    results = perfect()
    shown = quality_markdown(runs.QUALITY, results)
    met = "of *must*, every limit is met"
    assert shown.endswith(f"\n\n- **likelihood**: {met}\n- **WGAN**: {met}")
    assert "| C2ST AUC | 0.5000 | 0.5000 | 0.5000 | 0.5000 ± 0.0020 | ≤ 0.505 | ≤ 0.503 | ≤ 0.507 |" in shown
    results["wgan-s10"]["values"]["c2st_auc"] = [0.53]
    alone = "  - seed 10 alone is beyond the limits of a single seed: C2ST AUC (≤ 0.52)"
    assert quality_markdown(runs.QUALITY, results).endswith(f"- **WGAN**: {met}\n{alone}")
    for run in runs.LIKELIHOOD[:3]:
        results[run.name]["values"]["count_mean_ratio"] = [0.994]
        results[run.name]["values"]["energy_above_10_tev_ratio"] = [1.2]
    for run in runs.WGAN[:3]:
        results[run.name]["values"]["energy_above_10_tev_ratio"] = [0.5]
    shown = quality_markdown(runs.QUALITY, results)
    for line in (
        "- **likelihood**: of *must*, missed: P(E > 10 TeV), ratio",
        "  - of *should*, missed: mean N, generated / expected",
        "  - seed 10 alone is beyond the limits of the median: P(E > 10 TeV), ratio (1 ± 0.15)",
        "- **WGAN**: of *must*, missed: P(E > 10 TeV), ratio",
    ):
        assert line in shown.splitlines()
    assert "| P(E > 10 TeV), ratio | 1.200 (1.000 to 1.200) | 0.500 (0.500 to 1.000) | 1.000 |" in shown
    del results["wgan-s14"]
    assert "**WGAN**:" not in quality_markdown(runs.QUALITY, results)


def test_a_limit_may_be_a_multiple_of_the_floor() -> None:
    limit = Limit(0.5, should_floors=1.2)
    assert limit.wanted(0.1) == pytest.approx(0.12)
    assert limit.wanted(10.0) == 0.5, "what should be is never looser than what must be"
    assert Limit(0.5).wanted(0.1) is None
    assert Limit(0.1, kind="around one").met(0.95, 0.1)
    assert not Limit(0.1, kind="around one").met(1.15, 0.1)
    assert not any(Limit(0.1, kind=kind).met(float("nan"), 0.1) for kind in ("at most", "at least", "around one"))


def test_the_pages_keep_their_own_text_around_the_tables(tmp_path: Path) -> None:
    page, choice = tmp_path / "physics.md", tmp_path / "models.md"
    for one in (page, choice):
        one.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_page(page, {}, keys.ROOT / "benchmarks" / "results" / "some.json", ["![picture](some.png)"])
        write_choice(choice, perfect())
    for one in (page, choice):
        text = one.read_text()
        assert text.startswith(f"before\n{BEGIN}\n")
        assert text.endswith(f"{END}\nafter\n")
        assert "old" not in text
    assert "![picture](some.png)\n\n### Quality" in page.read_text()
    assert page.read_text().count("### What fine-tuning forgets") == 1
    assert "| training, CPU s | 0 | 0 |" in choice.read_text()


def test_results_of_other_code_are_not_read(tmp_path: Path) -> None:
    run = runs.find("wgan-s10")
    path = keys.result_path(run, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"name": run.name}))
    (path.parent / "wgan-s11-0123456789abcdef.json").write_text("{}")
    assert set(read_results(runs.in_order((runs.QUALITY,)), tmp_path)) == {"wgan-s10"}


def test_precisions_are_compared_with_the_recorded_runs_of_the_same_seeds(tmp_path: Path) -> None:
    name, floats = precision.recorded()
    in_bf16 = {run.name: floats[run.name.removesuffix("-bf16")] for run in precision.runs_in_bf16()}
    assert sorted(in_bf16) == sorted(
        f"{model}-s{seed}-bf16" for model in ("likelihood", "wgan") for seed in range(10, 13)
    )
    page = tmp_path / "physics.md"
    page.write_text(f"before\n{precision.BEGIN}\nold\n{precision.END}\nafter\n")

    path = precision.write(page, in_bf16, tmp_path)

    text = page.read_text()
    assert text.startswith(f"before\n{precision.BEGIN}\n")
    assert text.endswith(f"{precision.END}\nafter\n")
    (line,) = (line for line in text.splitlines() if line.startswith("| lg E |"))
    cells = line.split(" | ")
    assert cells[1] == cells[2] != "–", "the same numbers in both precisions here"
    assert "not made yet" not in text
    assert json.loads(path.read_text())["runs"].keys() == in_bf16.keys()
    assert name in path.with_suffix(".md").read_text()
