"""Whose metrics stand on a model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.config import SourceConfig
from common.errors import BadInputError
from workloads.base.trained_run import TrainedRun
from workloads.muons.export.card import of_another_model
from workloads.muons.export.run import read_report


@pytest.fixture
def run() -> TrainedRun:
    return TrainedRun(Path("best.pt"), 7, 100, "likelihood", {}, (), SourceConfig(), 0.0, "{}")


def own(run: TrainedRun) -> dict[str, Any]:
    return {"checkpoint": "b.pt", "model": run.model, "step": run.step, "config_digest": run.config_digest}


def count_tv(value: float) -> dict[str, Any]:
    return {"count_tv": {"value": value, "error": None, "floor": 0.1}}


def read(folder: Path, report: dict[str, Any], run: TrainedRun) -> dict[str, Any]:
    path = folder / "report.json"
    path.write_text(json.dumps(report))
    found = read_report(path, run, must_exist=True)
    assert found is not None
    return found


def test_a_run_that_was_shown_beside_another_has_its_own_metrics(run: TrainedRun, tmp_path: Path) -> None:
    wgan = {"checkpoint": "a.pt", "model": "wgan", "step": 7, "config_digest": "0" * 16}
    both = {"events": 5000, "seed": 0}
    of_first = {"notes": ["of the wgan"], "muons_generated": 3, "metrics": count_tv(0.5)}
    beside = {"provenance": own(run), "metrics": count_tv(0.2)}
    report = {**wgan, **both, **of_first, "beside": beside}
    assert read(tmp_path, report, run) == {**own(run), **both, "metrics": count_tv(0.2)}

    beside["provenance"] |= {"step": 9}
    assert read(tmp_path, report, run) == report
    first = {**own(run), "metrics": count_tv(0.3), "beside": {"provenance": own(run), "metrics": count_tv(0.2)}}
    assert read(tmp_path, first, run) == first

    with pytest.raises(BadInputError, match="it has no metrics"):
        read(tmp_path, {**report, "beside": {"provenance": own(run)}}, run)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"model": "wgan"}, "they are of a model of the kind wgan, and this one is of the kind likelihood"),
        ({"step": 9}, "they are of the weights at step 9, and this model is of step 7"),
        ({"config_digest": "0" * 16}, "they are of a run with another configuration"),
    ],
)
def test_metrics_of_another_model_are_told(changed: dict[str, object], reason: str, run: TrainedRun) -> None:
    card = {"model": run.model, "training": {"steps": run.step, "config_digest": run.config_digest}}
    assert of_another_model({**card, "evaluation": {**own(run), **changed}}) == reason
    assert of_another_model({**card, "evaluation": None}) == ""
