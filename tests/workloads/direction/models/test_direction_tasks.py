"""Promises that the steps of the direction models keep, and prediction with trained models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from direction_events import GEOMETRY, POSITION_S3, direction_batch, direction_microbatch
from thread_ranks import together
from torch import Tensor
from toy_tasks import finite, same, saved, weights

from common.errors import BadInputError
from tests.workloads.direction.fake_predictor import task_of, write_checkpoint
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.direction.fits import classical_fits
from workloads.direction.geometry import GEOMETRY_FILE, WATER, Geometry, write_geometry
from workloads.direction.metrics import unit_and_norm
from workloads.direction.models.config import CONFIGS, SetsConfig
from workloads.direction.models.network import energy_loss
from workloads.direction.models.sets import SetsNetwork
from workloads.direction.models.task import NETWORKS, DirectionPanel, DirectionTask, load_predictor

CPU = torch.device("cpu")
METRICS = {"vmf_loss", "auxiliary_loss", "angle_deg", "mean_direction", "network_grad_norm", "skipped_updates"}
CLOSE = {"rtol": 2e-4, "atol": 1e-5}
Make = Callable[..., DirectionTask]


@pytest.fixture(scope="module", autouse=True)
def small_network() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(NETWORKS, "sets", lambda config: SetsNetwork(8, 2))
        yield


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Maker of small tasks."""
    write_geometry(tmp_path / GEOMETRY_FILE, GEOMETRY)
    return partial(task_of, tmp_path, warmup_steps=0)


def half_enriched(num: int = 12, seed: int = 0) -> Microbatch:
    return direction_microbatch(num, seed, enriched=[number % 2 == 1 for number in range(num)])


def test_a_step_changes_network_and_average_and_returns_finite_metrics(make: Make) -> None:
    task = make()
    before = weights(task.averaged.latest), weights(task.averaged.average)

    metrics = task.step(direction_batch())

    assert metrics.keys() == METRICS
    assert finite(metrics)
    assert metrics["network_grad_norm"] > 0
    assert metrics["skipped_updates"] == 0
    after = weights(task.averaged.latest)
    assert not same(before[0], after)
    assert not same(before[1], weights(task.averaged.average))
    assert finite(task.step(Batch(())))
    assert same(after, weights(task.averaged.latest)), "no events change nothing"
    assert task.steps == 2


@pytest.mark.parametrize("bf16", [False, True])
def test_parts_and_threads_make_the_step_of_the_whole_batch(make: Make, bf16: bool) -> None:
    contexts = [StepContext(CPU, 1, bf16=bf16, threads=threads) for threads in (1, 3)]
    whole, *parts = make(contexts[0], energy=True), *(make(c, chunk_particles=80, energy=True) for c in contexts)
    batch = Batch((half_enriched(), direction_microbatch(9, 5)))
    expected, *found = (task.step(batch) for task in (whole, *parts))
    assert found[0] == found[1]
    assert same(*(weights(task.averaged.latest) for task in parts))
    if not bf16:
        torch.testing.assert_close(found[0], expected, **CLOSE)


def test_enriched_events_teach_the_light_alone(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The final prediction learns from natural events, normalised by their number: the mixture stays natural."""
    monkeypatch.setattr(SetsConfig, "gradient_clip", 0.0)
    both, alone = make(symmetry="none"), make(symmetry="none")
    events = half_enriched()
    natural = [events.part(number, number + 1) for number in range(0, 12, 2)]

    with_enriched, without = both.step(Batch((events,))), alone.step(Batch(tuple(natural)))

    for name in ("vmf_loss", "angle_deg"):
        torch.testing.assert_close(with_enriched[name], without[name], **CLOSE)
    trust, light = (
        [weights(task.averaged.latest.get_submodule(branch)) for task in (both, alone)] for branch in ("trust", "light")
    )
    torch.testing.assert_close(*trust, rtol=1e-3, atol=1e-5)
    assert float(with_enriched["auxiliary_loss"]) != pytest.approx(float(without["auxiliary_loss"]), abs=1e-6)
    assert not same(*light)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param({"counts": [1, 1, 1]}, id="one pulse each"),
        pytest.param({"counts": [0, 0]}, id="no pulses"),
        pytest.param({"counts": [0, 7, 0, 1]}, id="some without pulses"),
        pytest.param({"counts": [8, 1], "auxiliary": 1.1}, id="all auxiliary"),
    ],
)
@pytest.mark.parametrize("bf16", [False, True])
def test_events_that_tell_little_do_no_harm(make: Make, events: dict[str, Any], bf16: bool) -> None:
    task = make(StepContext(CPU, 1, bf16=bf16), energy=True)
    for _ in range(2):
        metrics = task.step(Batch((direction_microbatch(**events),)))
        assert finite(metrics)
        assert metrics["skipped_updates"] == 0
    assert all(value.isfinite().all() for value in weights(task.averaged.latest))


@pytest.mark.parametrize("share", [(6, 6), (12, 0)])
def test_ranks_make_the_step_of_one(make: Make, share: tuple[int, int]) -> None:
    events = half_enriched()
    alone = make(symmetry="none", energy=True)
    expected = [alone.step(Batch((events,))) for _ in range(2)]

    building = Lock()  # weights come from torch's global generator, which ranks of one process share

    def train(ranks: Any) -> tuple[list[dict[str, Tensor]], list[Tensor]]:
        with building:
            task = make(StepContext(CPU, 1, sum_over_ranks=ranks.sum_), symmetry="none", energy=True)
        own = events.part(0, share[0]) if ranks.rank == 0 else events.part(share[0], 12)
        batch = Batch((own,) if own.num_events else ()).among(12, events.num_particles)
        return [task.step(batch) for _ in range(2)], weights(task.averaged.latest)

    (first, of_first), (second, of_second) = together(2, train)
    assert first == second
    assert same(of_first, of_second)
    torch.testing.assert_close(first, expected, **CLOSE)


def test_a_resumed_run_has_the_same_bits(make: Make) -> None:
    task, resumed = (make(schedule_steps=20) for _ in range(2))
    task.step(direction_batch())
    resumed.load_state_dict(saved(task))

    metrics = []
    for trained in (task, resumed):
        torch.rand(3)  # nobody else's random numbers matter
        metrics.append([trained.step(direction_batch(seed=seed)) for seed in (1, 2)])

    assert metrics[0] == metrics[1]
    assert same(weights(task.averaged.latest), weights(resumed.averaged.latest))
    assert same(weights(task.averaged.average), weights(resumed.averaged.average))


def test_weights_of_another_detector_are_refused(make: Make, tmp_path: Path) -> None:
    for detector in (Geometry(GEOMETRY.position_S3 + 1), Geometry(GEOMETRY.position_S3, WATER)):
        write_geometry(tmp_path / "other.csv", detector)
        other = make(geometry=str(tmp_path / "other.csv"))
        for load in (other.load_weights, other.load_state_dict):
            with pytest.raises(RuntimeError, match=r"geometry that it was trained with \(trainer.sets.geometry"):
                load(saved(make()))


def test_events_without_fits_are_refused_with_what_to_do(make: Make) -> None:
    microbatch = direction_microbatch(counts=[9, 5, 0])
    microbatch.event_columns["classical_fits"][1:] = 0  # the last one has no pulses, and needs none
    with pytest.raises(BadInputError, match=r"1 of 3 events have no classical fits.*icestream seeds"):
        make().step(Batch((microbatch,)))


def test_turns_differ_from_step_to_step_and_can_be_switched_off(make: Make) -> None:
    batch = direction_batch()
    losses = {}
    for symmetry in ("rotation", "none"):
        task = make(symmetry=symmetry, learning_rate=1e-12)
        losses[symmetry] = [float(task.step(batch)["auxiliary_loss"]) for _ in range(2)]
    assert losses["rotation"][0] != pytest.approx(losses["rotation"][1], abs=1e-7)
    assert losses["none"][0] == pytest.approx(losses["none"][1], abs=1e-7)


def test_collapse_to_one_direction_shows_and_small_batches_do_not_look_like_it(make: Make) -> None:
    told = []
    for task in (make(), make(), make(warmup_steps=9)):
        if told:
            task.averaged.latest.get_parameter("trust.head.3.bias").data[4] = 1e4
        metrics = [task.step(direction_batch(16, seed)) for seed in range(9)]
        told.append(float(metrics[-1]["mean_direction"]))
    assert told[0] < 0.3
    assert told[1] > 0.7
    assert told[2] == 0, "a network that has learned nothing yet has one direction, too"


def test_the_loss_of_energies_is_the_negative_logarithm_of_a_normal_density() -> None:
    energy_E2 = torch.tensor([[3.0, math.log(0.5)], [2.0, 0.0]])
    expected = [-math.log(math.exp(-2) / (0.5 * math.sqrt(2 * math.pi))), math.log(2 * math.pi) / 2]
    torch.testing.assert_close(energy_loss(energy_E2, torch.tensor([4.0, 2.0])), torch.tensor(expected))


@pytest.mark.parametrize("model", CONFIGS)
def test_the_energy_is_off_by_default_and_no_other_weight_or_first_loss_depends_on_it(make: Make, model: str) -> None:
    plain, task = make(model=model), make(model=model, energy=True)
    before, own = (one.averaged.latest.state_dict() for one in (task, plain))
    assert {name for name in before if name not in own} == {name for name in before if name.startswith("energy.")}
    assert all(torch.equal(value, before[name]) for name, value in own.items())
    metrics, found = (one.step(direction_batch()) for one in (plain, task))
    assert found.keys() - metrics.keys() == {"energy_loss", "lg_energy_error"}
    assert all(found[name] == metrics[name] for name in ("vmf_loss", "auxiliary_loss", "angle_deg"))
    assert finite(found)
    block = Batch((direction_microbatch(counts=[0, 9, 1]),))
    assert plain.predictor().predict(block.microbatches[0]).energy_E2 is None
    assert task.predictor().predict(block.microbatches[0]).energy_E2.isfinite().all()
    without, panel = (DirectionPanel(one).evaluate(block).scalars.keys() for one in (plain, task))
    assert panel - without == {"panel/lg_energy_bias", "panel/lg_energy_rms"}


@pytest.mark.parametrize("why", ["enriched", "unknown energy", "no events"])
def test_events_that_are_enriched_or_of_unknown_energy_do_not_teach_the_energy(make: Make, why: str) -> None:
    task = make(energy=True, learning_rate=1e-30)  # AdamW without a gradient: weights decay by nothing
    events = direction_microbatch(8, enriched=[why == "enriched"] * 8)
    if why == "unknown energy":
        events.event_columns["true_energy"][:] = 0
    metrics = task.step(Batch((events,) if why != "no events" else ()))
    assert finite(metrics)
    assert metrics["energy_loss"] == metrics["lg_energy_error"] == 0
    optimiser = task.state_dict()["optimisers"]["network"]["state"]
    moments = list(optimiser.values())[-len(weights(task.averaged.latest.get_submodule("energy"))) :]
    assert all((moment["exp_avg"] == 0).all() for moment in moments)


@pytest.mark.slow
def test_the_energy_is_learned_and_its_error_is_that_of_new_events(make: Make) -> None:
    """The best possible error is 0.217, the spread of energies for a number of pulses."""
    task = make(energy=True, schedule_steps=150, warmup_steps=10, learning_rate=5e-3)
    losses = [float(task.step(direction_batch(48, 100 + seed))["energy_loss"]) for seed in range(150)]
    assert sum(losses[-20:]) < sum(losses[:20]) - 10
    events = direction_microbatch(800, 1)
    mean_E, ln_error_E = task.predictor().predict(events).energy_E2.unbind(1)
    true_E = events.event_columns["true_energy"][:, 0].log10()
    residual_E = mean_E - true_E
    assert 0.2 < residual_E.square().mean().sqrt() < 0.26 < true_E.std() / 1.5
    assert (residual_E / ln_error_E.exp()).std() == pytest.approx(1, abs=0.12)


def test_a_checkpoint_fits_only_the_setting_of_the_energy_that_it_was_written_with(make: Make, tmp_path: Path) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "num_events", "learning_rate"), [("sets", 16, 1e-2), ("transformer", 16, 3e-3), ("flat", 64, 3e-3)]
)
def test_a_few_events_are_learned_by_heart(make: Make, model: str, num_events: int, learning_rate: float) -> None:
    """The sets without the track fit, which is left at random directions."""
    task = make(model=model, symmetry="none", warmup_steps=5, learning_rate=learning_rate)
    microbatch = direction_microbatch(num_events, 3)
    random_E3 = torch.randn(num_events, 3, generator=torch.Generator().manual_seed(1))
    microbatch.event_columns["classical_fits"][:, 8:11] = torch.nn.functional.normalize(random_E3, dim=1)
    errors = (float(task.step(Batch((microbatch,)))["angle_deg"]) for _ in range(60))
    assert next(errors) > 60
    assert any(error < 10 for error in errors)  # no more steps than it takes


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory, small_network: None) -> DirectionTask:
    """A small task after three steps."""
    folder = tmp_path_factory.mktemp("detector")
    write_geometry(folder / GEOMETRY_FILE, GEOMETRY)
    task = task_of(folder)
    (folder / GEOMETRY_FILE).unlink()
    for seed in range(3):
        task.step(direction_batch(16, seed))
    return task


def test_classical_fits_that_events_lack_are_computed(task: DirectionTask) -> None:
    stored, bare = direction_microbatch(4), direction_microbatch(4)
    columns = {name: column.numpy().T for name, column in bare.particle_columns.items()}
    pulses = (*columns["sensor"], *columns["pulses"], *columns["auxiliary"])
    fits_EF = classical_fits(*pulses, bare.host_offsets_E1, GEOMETRY)
    stored.event_columns["classical_fits"][:2] = torch.from_numpy(fits_EF[:2])
    bare.event_columns["classical_fits"][:2] = 0

    predictor = task.predictor()

    torch.testing.assert_close(predictor.predict(bare).p_E3, predictor.predict(stored).p_E3)


def test_a_checkpoint_predicts_as_its_task_did_without_geometry_and_one_of_another_network_is_told(
    task: DirectionTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path / "step-1.pt", task)
    microbatch = direction_microbatch(8)

    trained = load_predictor(path, CPU)

    assert torch.equal(trained.predict(microbatch).p_E3, task.predictor().predict(microbatch).p_E3)
    assert torch.equal(trained.detector.position_S3, POSITION_S3)
    assert trained.run.model == "sets"
    assert not any(one.requires_grad for one in trained.network.parameters())
    monkeypatch.setitem(NETWORKS, "sets", lambda config: SetsNetwork(16, 2))
    with pytest.raises(BadInputError, match=r"step-1\.pt: its model can't be built"):
        load_predictor(path, CPU)


def test_the_panel_has_the_errors_of_natural_events_and_without_any_there_is_none(task: DirectionTask) -> None:
    enriched = [number % 3 == 0 for number in range(30)]
    whole = direction_microbatch(30, 5, enriched=enriched)
    block = Batch((whole.part(0, 11), whole.part(11, 11), whole.part(11, 30)))
    state = {name: value.clone() for name, value in task.averaged.latest.state_dict().items()}

    panel = DirectionPanel(task)
    evaluation = panel.evaluate(block)

    assert evaluation is not None
    natural = ~np.array(enriched)
    unit_E3, kappa = unit_and_norm(task.predictor().predict(whole).p_E3.double().numpy()[natural])
    cosine = (unit_E3 * whole.event_columns["source_direction"].double().numpy()[natural]).sum(1)
    angles = np.degrees(np.arccos(cosine))
    tracks = np.arange(30)[natural] % 2 == 1
    expected = {
        "panel/angle_mean_deg": angles.mean(),
        "panel/angle_median_deg": np.median(angles),
        "panel/angle_68_deg": np.quantile(angles, 0.68),
        "panel/track_angle_mean_deg": angles[tracks].mean(),
        "panel/cascade_angle_mean_deg": angles[~tracks].mean(),
        "panel/score": angles.mean(),
        "panel/kappa_pull_mean": (2 * kappa * (1 - cosine)).mean(),
    }
    assert {name: evaluation.scalars[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    assert np.isfinite(evaluation.scalars["train/held_out_vmf_loss"])
    assert {name: one.counts.sum() for name, one in evaluation.histograms.items()} == {
        "hist/log10_angle_deg": 20,
        "hist/log10_kappa": 20,
    }
    assert panel.settings() == {"lr_network": task.learning_rates()["network"]}
    assert all(torch.equal(value, state[name]) for name, value in task.averaged.latest.state_dict().items())
    for nothing in ((), (direction_microbatch(3, enriched=[True] * 3),)):
        assert panel.evaluate(Batch(nothing)) is None
