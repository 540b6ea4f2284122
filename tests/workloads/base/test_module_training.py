"""Training of a torch module by its own loss, from the object that a user's file holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from line_task import points
from pydantic import field_validator, model_validator
from torch import Tensor, nn

import icestream
from common.errors import BadInputError
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.training import own_training

CPU = torch.device("cpu")


class LineSettings(icestream.ModelSettings):
    slope: float = 0.0

    @field_validator("slope")
    @classmethod
    def _is_lucky(cls, slope: float) -> float:
        if slope == 13.0:
            raise ValueError("brings bad luck")
        return slope

    @model_validator(mode="after")
    def _fits(self) -> LineSettings:
        if self.slope == 2.0 and self.warmup_steps:
            raise ValueError("a slope of 2 needs no warm-up")
        return self


class Line(nn.Module):
    """y = slope · x, with a squared error."""

    def __init__(self, settings: LineSettings) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(settings.slope))

    def forward(self, events: Microbatch) -> Tensor:
        x, y = events.event_columns["point"].unbind(1)
        return (self.slope * x - y) ** 2


TRAINING = icestream.ModuleTraining(Line, LineSettings, alarms={"loss": 1e9})


def batch(number: int = 6, first: int = 0) -> Batch:
    x = torch.arange(first, first + number, dtype=torch.float32)
    one_each = points(*[1] * number)
    return Batch((replace(one_each, event_columns={"point": torch.stack([x, 3 * x], 1)}),))


def task(**settings: Any) -> Any:
    return TRAINING.task(settings, StepContext(CPU, 1))


def test_a_step_is_adams_on_the_mean_loss_of_the_events() -> None:
    mine = task(slope=1.0, learning_rate=0.1)
    weight = nn.Parameter(torch.tensor(1.0))
    adam = torch.optim.Adam([weight], lr=0.1)
    for first in (0, 4):
        metrics = mine.step(batch(6, first))
        x, y = batch(6, first).microbatches[0].event_columns["point"].unbind(1)
        loss = ((weight * x - y) ** 2).mean()
        assert float(metrics["loss"]) == pytest.approx(loss.item())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert mine.network.slope.item() == pytest.approx(weight.item(), rel=1e-5)


def test_a_batch_in_parts_is_the_same_step_and_events_elsewhere_count() -> None:
    whole, parts = task(learning_rate=0.1), task(learning_rate=0.1, chunk_particles=2)
    first, second = whole.step(batch()), parts.step(batch())
    assert float(first["loss"]) == pytest.approx(float(second["loss"]))
    assert whole.network.slope.item() == pytest.approx(parts.network.slope.item())
    shared = task().step(batch().among(12, 12))
    assert float(shared["loss"]) == pytest.approx(float(first["loss"]) / 2)


class Dropping(nn.Module):
    """Half of the losses dropped while it is trained; a part of it is frozen in its own mode."""

    def __init__(self, settings: LineSettings) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(()))
        self.dropout, self.frozen = nn.Dropout(0.5), nn.Dropout(0.5).eval()

    def forward(self, events: Microbatch) -> Tensor:
        noise = torch.rand(())  # a draw of the global numbers, also in evaluation
        return self.dropout(self.slope * torch.ones(events.num_events)) + 0 * noise


def test_validation_is_without_dropout_and_changes_neither_modes_nor_random_numbers() -> None:
    mine = icestream.ModuleTraining(Dropping, LineSettings).task({}, StepContext(CPU, 1))
    numbers = torch.get_rng_state()
    found = icestream.ModuleTraining(Dropping, LineSettings).evaluator(mine, seed=0).evaluate(batch(64))
    assert found.scalars["panel/score"] == 1.0
    assert torch.equal(torch.get_rng_state(), numbers)
    assert (mine.network.training, mine.network.dropout.training, mine.network.frozen.training) == (True, True, False)


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"slop": 1}, "^unknown configuration key 'trainer.own.slop'; did you mean 'trainer.own.slope'"),
        ({"x": {"y": 1}}, "^unknown configuration key 'trainer.own.x'; trainer.own has learning_rate, .*slope"),
        ({"learning_rate": 0}, "^trainer.own.learning_rate = 0: expected a number above 0$"),
        ({"slope": "steep"}, "^trainer.own.slope = 'steep': expected a number$"),
        ({"slope": 13.0}, "^trainer.own.slope = 13.0: brings bad luck$"),
        ({"slope": 2.0, "warmup_steps": 5}, "^trainer.own: a slope of 2 needs no warm-up$"),
        (
            {"slope": "steep", "schedule": "sine"},
            "has 2 mistakes: .*schedule = 'sine': expected 'constant', 'cosine' or 'one_cycle'; .*slope = 's",
        ),
    ],
)
def test_settings_that_the_model_lacks_are_refused_by_their_key(section: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        TRAINING.task(section, StepContext(CPU, 1))


class Faulty(nn.Module):
    def __init__(self, settings: icestream.ModelSettings) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, events: Microbatch) -> Tensor:
        if events.num_events == 5:
            return self.weight @ torch.ones(3)
        return self.weight.sum()


def test_a_module_that_fails_or_returns_another_shape_is_said_in_one_line() -> None:
    mine = icestream.ModuleTraining(Faulty).task({}, StepContext(CPU, 1))
    with pytest.raises(BadInputError, match=rf"RuntimeError: .*{Path(__file__).name}, line \d+"):
        mine.step(batch(5))
    with pytest.raises(BadInputError, match=r"returned the shape \(\) for 6 events; expected \(6,\)"):
        mine.step(batch())


def test_a_failure_in_a_later_step_is_a_crash_and_not_the_users_mistake() -> None:
    mine = icestream.ModuleTraining(Faulty).task({}, StepContext(CPU, 1))
    mine.steps = 1
    with pytest.raises(RuntimeError):
        mine.step(batch(5))


def test_an_object_that_is_no_training_is_refused_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "colorsys", SimpleNamespace(TRAINING=SimpleNamespace(headline="loss")))
    with pytest.raises(BadInputError, match=r"colorsys:TRAINING is no training: it lacks shown, .*task, evaluator"):
        own_training("colorsys:TRAINING")
