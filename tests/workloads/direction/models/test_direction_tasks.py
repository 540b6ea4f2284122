"""Promises that the steps of the direction models keep: what teaches what, parts, ranks, checkpoints."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import torch
from direction_events import GEOMETRY, direction_batch, direction_microbatch
from thread_ranks import together
from torch import Tensor, nn

from common.errors import BadInputError
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.direction.geometry import GEOMETRY_FILE, Geometry, write_geometry
from workloads.direction.models.sets.config import SetsConfig, SetsNetworkConfig
from workloads.direction.models.sets.task import SetsTask
from workloads.direction.models.task import DirectionTask

CPU = torch.device("cpu")
SMALL = SetsNetworkConfig(hidden=8, layers=2, trust_hidden=8, trust_layers=1)
METRICS = {"vmf_loss", "auxiliary_loss", "angle_deg", "mean_direction", "network_grad_norm", "skipped_updates"}
Make = Callable[..., SetsTask]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Maker of small tasks."""
    write_geometry(tmp_path / GEOMETRY_FILE, GEOMETRY)

    def made(context: StepContext | None = None, **settings: Any) -> SetsTask:
        given = {"network": SMALL, "warmup_steps": 0, "geometry": str(tmp_path / GEOMETRY_FILE), **settings}
        return SetsTask(SetsConfig.model_validate(given), context or StepContext(CPU, seed=1))

    return made


def saved(task: DirectionTask[Any]) -> dict[str, Any]:
    """The state as it comes out of a file."""
    file = io.BytesIO()
    torch.save(task.state_dict(), file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file, weights_only=True)
    return state


def weights(network: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def finite(metrics: dict[str, Tensor]) -> bool:
    return all(value.shape == () and bool(value.isfinite()) for value in metrics.values())


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-4, atol=1e-5, msg=name)


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
    assert not same(before[0], weights(task.averaged.latest))
    assert not same(before[1], weights(task.averaged.average))


def test_an_untrained_network_is_as_unsure_as_one_can_be_of_the_light(make: Make) -> None:
    """ln 4π is the loss of no knowledge; the track fit, 6 degrees off here, is trusted from the start."""
    metrics = make().step(direction_batch(200))
    assert float(metrics["auxiliary_loss"]) == pytest.approx(2.53, abs=0.05)
    assert float(metrics["angle_deg"]) < 15


@pytest.mark.parametrize("bf16", [False, True])
def test_parts_and_threads_make_the_step_of_the_whole_batch(make: Make, bf16: bool) -> None:
    contexts = [StepContext(CPU, 1, bf16=bf16, threads=threads) for threads in (1, 3)]
    whole, parts = make(contexts[0]), [make(context, chunk_particles=40) for context in contexts]
    for seed in range(2):
        batch = Batch((half_enriched(seed=seed), direction_microbatch(9, seed + 5)))
        expected, *found = (task.step(batch) for task in (whole, *parts))
        assert found[0] == found[1]
        if not bf16:
            close(found[0], expected)


def test_microbatches_add_up_to_their_batch(make: Make) -> None:
    whole, parts = (make(symmetry="none") for _ in range(2))
    microbatch = half_enriched()
    pieces = (microbatch.part(0, 3), microbatch.part(3, 3), microbatch.part(3, 12))
    for _ in range(2):
        close(parts.step(Batch(pieces)), whole.step(Batch((microbatch,))))


def test_enriched_events_teach_the_light_alone(make: Make) -> None:
    """The final prediction learns from natural events, normalised by their number: the mixture stays natural."""
    settings = {"gradient_clip": 0.0, "symmetry": "none"}
    both, alone = make(**settings), make(**settings)
    events = half_enriched()
    natural = [events.part(number, number + 1) for number in range(0, 12, 2)]

    with_enriched, without = both.step(Batch((events,))), alone.step(Batch(tuple(natural)))

    close(
        {name: with_enriched[name] for name in ("vmf_loss", "angle_deg")},
        {name: without[name] for name in ("vmf_loss", "angle_deg")},
    )
    for one, other in zip(
        weights(both.averaged.latest.get_submodule("trust")),
        weights(alone.averaged.latest.get_submodule("trust")),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert float(with_enriched["auxiliary_loss"]) != pytest.approx(float(without["auxiliary_loss"]), abs=1e-6)
    assert not same(
        weights(both.averaged.latest.get_submodule("light")), weights(alone.averaged.latest.get_submodule("light"))
    )


def test_a_batch_of_enriched_events_alone_is_a_step_too(make: Make) -> None:
    metrics = make().step(Batch((direction_microbatch(4, enriched=[True] * 4),)))
    assert finite(metrics)
    assert metrics["vmf_loss"] == metrics["angle_deg"] == 0
    assert metrics["auxiliary_loss"] > 0


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
    task = make(StepContext(CPU, 1, bf16=bf16))
    for _ in range(3):
        metrics = task.step(Batch((direction_microbatch(**events),)))
        assert finite(metrics)
        assert metrics["skipped_updates"] == 0
    assert all(value.isfinite().all() for value in weights(task.averaged.latest))


def test_a_batch_without_events_changes_nothing(make: Make) -> None:
    task = make()
    task.step(direction_batch())
    before = weights(task.averaged.latest)
    assert finite(task.step(Batch(())))
    assert same(before, weights(task.averaged.latest))
    assert task.steps == 2


@pytest.mark.parametrize("share", [(6, 6), (11, 1), (12, 0)])
def test_ranks_make_the_step_of_one(make: Make, share: tuple[int, int]) -> None:
    events = half_enriched()
    alone = make(symmetry="none")
    expected = [alone.step(Batch((events,))) for _ in range(2)]

    building = Lock()  # weights come from torch's global generator, which ranks of one process share

    def train(ranks: Any) -> tuple[list[dict[str, Tensor]], list[Tensor]]:
        with building:
            task = make(StepContext(CPU, 1, sum_over_ranks=ranks.sum_), symmetry="none")
        own = events.part(0, share[0]) if ranks.rank == 0 else events.part(share[0], 12)
        batch = Batch((own,) if own.num_events else ()).among(12, events.num_particles)
        return [task.step(batch) for _ in range(2)], weights(task.averaged.latest)

    (first, of_first), (second, of_second) = together(2, train)
    assert first == second
    assert same(of_first, of_second)
    for found, wanted in zip(first, expected, strict=True):
        close(found, wanted)


@pytest.mark.parametrize("bf16", [False, True])
def test_a_resumed_run_has_the_same_bits(make: Make, bf16: bool) -> None:
    context = StepContext(CPU, 1, bf16=bf16)
    task, resumed = (make(context, schedule_steps=20) for _ in range(2))
    for seed in range(3):
        task.step(direction_batch(seed=seed))
    task.scale_learning_rates(0.5)
    resumed.load_state_dict(saved(task))

    metrics = []
    for trained in (task, resumed):
        torch.rand(3)  # nobody else's random numbers matter
        metrics.append([trained.step(direction_batch(seed=seed)) for seed in range(3, 6)])

    assert metrics[0] == metrics[1]
    assert task.learning_rates() == resumed.learning_rates()
    for network, state in saved(task)["networks"].items():
        for name, value in saved(resumed)["networks"][network].items():
            assert torch.equal(value, state[name]), f"{network}.{name}"


def test_a_checkpoint_keeps_its_keys(make: Make) -> None:
    """Checkpoints of the first release are read with them."""
    state = make().state_dict()
    assert state.keys() == {"networks", "optimisers", "counters", "recipe", "mean_direction"}
    assert state["networks"].keys() == {"detector", "network", "network_average"}
    assert state["networks"]["detector"].keys() == {"position_S3"}
    assert state["optimisers"].keys() == {"network"}
    assert state["counters"].keys() == {"steps", "rate_scale"}


def test_weights_of_another_detector_are_refused(make: Make, tmp_path: Path) -> None:
    write_geometry(tmp_path / "other.csv", Geometry(GEOMETRY.position_S3 + 1))
    other = make(geometry=str(tmp_path / "other.csv"))
    for load in (other.load_weights, other.load_state_dict):
        with pytest.raises(RuntimeError, match=r"use the geometry that it was trained with \(trainer.sets.geometry\)"):
            load(saved(make()))


def test_the_geometry_lies_beside_the_runs_inputs(make: Make, tmp_path: Path) -> None:
    context = StepContext(CPU, 1, inputs=(str(tmp_path),))
    assert len(make(context, geometry="").detector.position_S3) == 225


def test_events_without_fits_are_refused_with_what_to_do(make: Make) -> None:
    microbatch = direction_microbatch(3)
    microbatch.event_columns["classical_fits"][1] = 0
    with pytest.raises(BadInputError, match=r"1 of 3 events have no classical fits.*icestream seeds"):
        make().step(Batch((microbatch,)))


def test_turns_differ_from_step_to_step_and_can_be_switched_off(make: Make) -> None:
    batch = direction_batch()
    losses = {}
    for symmetry in ("rotation", "none"):
        task = make(symmetry=symmetry, learning_rate=1e-12, weight_decay=0.0)
        losses[symmetry] = [float(task.step(batch)["auxiliary_loss"]) for _ in range(2)]
    assert losses["rotation"][0] != pytest.approx(losses["rotation"][1], abs=1e-7)
    assert losses["none"][0] == pytest.approx(losses["none"][1], abs=1e-7)


def test_collapse_to_one_direction_shows_and_small_batches_do_not_look_like_it(make: Make) -> None:
    task = make()
    for seed in range(30):
        metrics = task.step(direction_batch(16, seed))
    assert metrics["mean_direction"] < 0.3
    head = task.averaged.latest.get_submodule("trust").get_submodule("head")
    assert isinstance(head, nn.Sequential)
    bias = head[-1].bias
    assert isinstance(bias, Tensor)
    bias.data[4] = 1e4
    for seed in range(30):
        metrics = task.step(direction_batch(16, seed))
    assert metrics["mean_direction"] > 0.7


@pytest.mark.slow
def test_a_few_events_are_learned_by_heart(make: Make) -> None:
    """Without the track fit, which is left at random directions: 64 events to less than 5 degrees."""
    network = SetsNetworkConfig(hidden=32, layers=2, trust_hidden=16, trust_layers=1)
    task = make(network=network, symmetry="none", learning_rate=3e-3, average_decay=0.0)
    microbatch = direction_microbatch(64, 3)
    random = torch.nn.functional.normalize(torch.randn(64, 3, generator=torch.Generator().manual_seed(1)), dim=1)
    microbatch.event_columns["classical_fits"][:, 8:11] = random
    for _ in range(200):
        metrics = task.step(Batch((microbatch,)))
    assert metrics["angle_deg"] < 5


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of what it does itself
def test_a_compiled_network_makes_the_same_step(make: Make) -> None:
    tiny = SetsNetworkConfig(hidden=4, layers=1, trust_hidden=4, trust_layers=1)
    plain, compiled = make(network=tiny), make(network=tiny, compile=True)
    for seed in range(2):
        close(compiled.step(direction_batch(seed=seed)), plain.step(direction_batch(seed=seed)))
    assert saved(compiled).keys() == saved(plain).keys()
    assert saved(compiled)["networks"]["network"].keys() == saved(plain)["networks"]["network"].keys()


def test_compiling_without_a_compiler_is_refused_with_the_fix(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BadInputError, match=r"trainer\.sets\.compile = true needs a C\+\+ compiler"):
        make(compile=True)
