"""The energy as a second target of the direction models: off by default, natural events alone, its error is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from direction_events import GEOMETRY, direction_batch, direction_microbatch
from toy_tasks import finite, same, saved, weights

from common.errors import BadInputError
from tests.workloads.direction.fake_predictor import write_checkpoint
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.direction.geometry import GEOMETRY_FILE, write_geometry
from workloads.direction.models.config import CONFIGS
from workloads.direction.models.network import energy_loss
from workloads.direction.models.sets import SetsNetwork
from workloads.direction.models.task import NETWORKS, DirectionPanel, DirectionTask, load_predictor

CPU = torch.device("cpu")
ENERGY_METRICS = {"energy_loss", "lg_energy_error"}
Make = Callable[..., DirectionTask]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Maker of tasks."""
    write_geometry(tmp_path / GEOMETRY_FILE, GEOMETRY)

    def made(model: str = "sets", **settings: Any) -> DirectionTask:
        given = {"warmup_steps": 0, "geometry": str(tmp_path / GEOMETRY_FILE), **settings}
        return DirectionTask(model, CONFIGS[model].model_validate(given), StepContext(CPU, seed=1))

    return made


def energy_weights(task: DirectionTask) -> list[torch.Tensor]:
    return weights(task.averaged.latest.get_submodule("energy"))


def test_the_loss_is_the_negative_logarithm_of_a_normal_density() -> None:
    energy_E2 = torch.tensor([[3.0, math.log(0.5)], [2.0, 0.0]])
    expected = [-math.log(math.exp(-2) / (0.5 * math.sqrt(2 * math.pi))), math.log(2 * math.pi) / 2]
    torch.testing.assert_close(energy_loss(energy_E2, torch.tensor([4.0, 2.0])), torch.tensor(expected))


@pytest.mark.parametrize("model", CONFIGS)
def test_it_is_off_by_default_and_no_other_weight_or_first_prediction_depends_on_it(make: Make, model: str) -> None:
    plain, task = make(model), make(model, energy=True)
    before, own = (one.averaged.latest.state_dict() for one in (task, plain))
    assert {name for name in before if name not in own} == {name for name in before if name.startswith("energy.")}
    assert all(torch.equal(value, before[name]) for name, value in own.items())
    metrics, found = (one.step(direction_batch()) for one in (plain, task))
    assert found.keys() - metrics.keys() == ENERGY_METRICS
    assert all(found[name] == metrics[name] for name in ("vmf_loss", "auxiliary_loss", "angle_deg"))
    assert finite(found)
    block = Batch((direction_microbatch(counts=[0, 9, 1]),))
    assert plain.predictor().predict(block.microbatches[0]).energy_E2 is None
    assert task.predictor().predict(block.microbatches[0]).energy_E2.isfinite().all()
    names = [
        one.scalars.keys() for one in (DirectionPanel(task).evaluate(block), DirectionPanel(plain).evaluate(block))
    ]
    assert names[0] - names[1] == {"panel/lg_energy_bias", "panel/lg_energy_rms"}


@pytest.mark.parametrize("why", ["enriched", "unknown energy", "no events"])
def test_events_that_are_enriched_or_of_unknown_energy_do_not_teach_it(make: Make, why: str) -> None:
    task = make(energy=True, learning_rate=1e-30)  # AdamW without a gradient: weights decay by nothing
    events = direction_microbatch(8, enriched=[why == "enriched"] * 8)
    if why == "unknown energy":
        events.event_columns["true_energy"][:] = 0
    metrics = task.step(Batch((events,) if why != "no events" else ()))
    assert finite(metrics)
    assert metrics["energy_loss"] == metrics["lg_energy_error"] == 0
    optimiser = task.state_dict()["optimisers"]["network"]["state"]
    moments = list(optimiser.values())[-len(energy_weights(task)) :]
    assert all((moment["exp_avg"] == 0).all() for moment in moments)


@pytest.mark.slow
def test_it_is_learned_and_its_error_is_that_of_new_events(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best possible error is 0.217, the spread of energies for a number of pulses."""
    monkeypatch.setitem(NETWORKS, "sets", lambda config: SetsNetwork(16, 2))
    task = make(energy=True, schedule_steps=150, warmup_steps=10, learning_rate=5e-3)
    losses = [float(task.step(direction_batch(48, 100 + seed))["energy_loss"]) for seed in range(150)]
    assert sum(losses[-20:]) < sum(losses[:20]) - 10
    events = direction_microbatch(800, 1)
    mean_E, ln_error_E = task.predictor().predict(events).energy_E2.unbind(1)
    true_E = events.event_columns["true_energy"][:, 0].log10()
    residual_E = mean_E - true_E
    assert 0.2 < residual_E.square().mean().sqrt() < 0.26 < true_E.std() / 1.5
    assert (residual_E / ln_error_E.exp()).std() == pytest.approx(1, abs=0.12)


def test_a_checkpoint_fits_only_the_value_it_was_written_with(make: Make, tmp_path: Path) -> None:
    with_energy, without = make(energy=True), make()
    for task, other in ((with_energy, without), (without, with_energy)):
        with pytest.raises(RuntimeError, match=r"energy\.0\.weight"):
            other.load_state_dict(saved(task))
    trained = load_predictor(write_checkpoint(tmp_path / "a.pt", with_energy), CPU)
    events = direction_microbatch(5)
    assert same([trained.predict(events).energy_E2], [with_energy.predictor().predict(events).energy_E2])
    with_energy.config = without.config
    with pytest.raises(BadInputError, match="its networks are not those of this version"):
        load_predictor(write_checkpoint(tmp_path / "b.pt", with_energy), CPU)
