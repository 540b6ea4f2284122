"""The harness of `make bench-physics`, in small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.physics import runs
from benchmarks.physics.data import evaluation_events, tail_primaries
from benchmarks.physics.one import complete
from benchmarks.physics.spec import Run, Source

TINY = Run("tiny", "likelihood", steps=3, batch_events=64, events=200, generations=2, tail_events=300, c2st_events=0)


@pytest.mark.parametrize("model", ["wgan", "likelihood", "count head", "simulator"])
def test_a_run_of_each_model_ends_in_metrics_and_is_not_made_again(model: str, tmp_path: Path) -> None:
    settings = {"likelihood_steps": 1} if model == "wgan" else {}
    run = replace(TINY, model=model, settings=settings, tail_events=0 if model == "count head" else 300)
    told: list[str] = []

    def said(stage: str, done: float) -> None:
        told.append(stage)

    result = complete(run, tmp_path, said)
    values = result["values"]
    assert ("training" in told) is (model != "simulator")
    assert len(values["count_tv"]) == 2
    assert min(values["count_tv"]) > 0
    assert ("log10_energy_w1" in values) is (model != "count head")
    assert ("muon_nats_excess" in values) is (model == "likelihood")
    assert len(values.get("energy_above_1_tev_ratio", [])) == {"count head": 0, "simulator": 2}.get(model, 1)
    assert len(result["histograms"]["log10_energy"]) == 50

    told.clear()
    assert complete(run, tmp_path, said) == result
    assert told == []


def test_nothing_that_is_quoted_has_a_seed_or_primaries_of_the_tuning() -> None:
    quoted = [run for table in runs.TABLES for run in table.runs]
    assert not any(run.tuning for run in quoted)
    assert {run.seed for run in quoted if run.model != "simulator"} == {10, 11, 12, 13, 14}
    assert all(run.tuning and run.seed < 5 for run in runs.TUNING.runs)
    for a, b in (
        [evaluation_events(Source(), 1000, tuning=tuning).primary_E4 for tuning in (False, True)],
        [tail_primaries(Source(), 1000, tuning=tuning) for tuning in (False, True)],
    ):
        assert not set(a[:, 0].tolist()) & set(b[:, 0].tolist())
