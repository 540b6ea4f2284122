"""`icestream bench overfit`: one batch, trained again and again."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from icestream.commands.bench import overfit
from icestream.commands.bench.command import bench
from workloads import registry

SMALL = ("trainer.device=cpu", "trainer.threads=1")
MODELS = [
    (workload.name, model)
    for workload in registry.every_workload()
    for model, one in workload.models.items()
    if find_spec(one.training.partition(":")[0]) is not None
]


def run(*arguments: str, settings: tuple[str, ...] = ()) -> Result:
    pairs = [word for assignment in (*SMALL, *settings) for word in ("--set", assignment)]
    return CliRunner().invoke(bench, ["overfit", *arguments, *pairs])


def answer_of(*arguments: str, settings: tuple[str, ...] = ()) -> Any:
    result = run(*arguments, "--json", settings=settings)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_a_model_that_learns_one_batch_shows_a_falling_headline_metric() -> None:
    settings = ("trainer.likelihood.network.hidden=16",)
    answer = answer_of("--model", "likelihood", "--events", "32", "--steps", "40", settings=settings)
    assert (answer["workload"], answer["model"], answer["events"], answer["steps"]) == ("muons", "likelihood", 32, 40)
    assert answer["headline"] == "muon_nll"
    assert answer["end"] < answer["start"] - 0.1
    steps = [row["step"] for row in answer["course"]]
    assert (steps[0], steps[-1], len(steps)) == (1, 40, 11)
    assert answer["course"][0]["metrics"]["muon_nll"] == answer["start"]
    assert answer["events_per_s"] > 0


def test_the_course_is_told_for_people_with_start_and_end_last() -> None:
    lines = run("--model", "likelihood", "--events", "16", "--steps", "3").output.splitlines()
    assert lines[0].startswith("likelihood on cpu, one batch of 16 events")
    assert lines[1].split()[:2] == ["step", "muon_nll"]
    rows = [line.split() for line in lines[2:5]]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    words = lines[-1].split()
    assert words[0] == "muon_nll:"
    assert (words[1], words[3]) == (rows[0][1], rows[-1][1])
    assert "in 3 steps" in lines[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "model"), MODELS)
def test_every_model_of_every_workload_can_be_tried(workload: str, model: str) -> None:
    answer = answer_of("--model", model, "--events", "8", "--steps", "2")
    training = registry.imported(registry.workload(workload).models[model].training)
    assert (answer["workload"], answer["headline"]) == (workload, training.headline)
    assert set(answer["course"][0]["metrics"]) <= {training.headline, *training.shown}


def test_the_training_ends_where_the_headline_metric_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bad:
        def step(self, batch: object) -> dict[str, torch.Tensor]:
            return {"muon_nll": torch.tensor(float("nan"))}

        def observed(self, metrics: object) -> None:
            pass

    class BadTraining:
        headline, shown = "muon_nll", ("muon_nll",)

        def task(self, *_: object) -> Bad:
            return Bad()

    monkeypatch.setattr(overfit, "training_of", lambda config: BadTraining())
    result = run("--model", "likelihood", "--events", "8", "--steps", "50")
    assert "ended after 1 of 50 steps: muon_nll is not finite" in result.output


def test_no_model_is_a_mistake_that_is_named() -> None:
    result = run("--model", "none")
    assert result.exit_code != 0
    assert "choose a model" in str(result.exception)
