"""The velocity field as a function of a set, the way from noise to muons, and the sampler of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from toy_events import toy_batch
from toy_tasks import SMALL_FLOW, make_flow, make_wgan, saved

from common.errors import BadInputError
from services.config.root import Config
from services.trainer.run_checks import require_model
from services.trainer.stream.position import StreamPosition
from workloads.base.checkpoint import FORMAT
from workloads.base.segments import Segments, spread
from workloads.muons.generation.load import load_trained
from workloads.muons.models.flow.config import FlowConfig, FlowNetworkConfig
from workloads.muons.models.flow.model import VelocityField
from workloads.muons.models.flow.networks import draw_noise, integrate
from workloads.muons.models.flow.sampler import FlowSampler
from workloads.muons.models.flow.task import FlowTask

CPU = torch.device("cpu")
COUNTS_E = torch.tensor([3, 0, 1, 4])
NUM = 8


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    yield
    torch.set_num_threads(threads)


def field(**network: object) -> VelocityField:
    made = VelocityField(2, SMALL_FLOW.model_copy(update=network))
    torch.nn.init.normal_(made.output.weight)
    return made


def segments_of(counts_E: Tensor) -> Segments:
    return Segments.from_counts(counts_E, int(counts_E.sum()))


@pytest.mark.parametrize("pooling", ["mean+max", "max", "mean", "sum"])
@torch.no_grad()
def test_a_permutation_of_an_events_muons_permutes_their_velocities(pooling: str) -> None:
    velocity, segments = field(pooling=pooling), segments_of(COUNTS_E)
    features_PF, time_E, conditions_EC = torch.randn(NUM, 2), torch.rand(4), torch.randn(4, 5)
    order = torch.tensor([2, 0, 1, 3, 7, 5, 6, 4])

    expected = velocity(features_PF, time_E, conditions_EC, segments)[order]

    torch.testing.assert_close(velocity(features_PF[order], time_E, conditions_EC, segments), expected)


@torch.no_grad()
def test_muons_know_of_those_of_their_own_event_and_of_no_others() -> None:
    velocity, segments = field(), segments_of(COUNTS_E)
    features_PF, time_E, conditions_EC = torch.randn(NUM, 2), torch.rand(4), torch.randn(4, 5)
    moved_PF = features_PF.clone()
    moved_PF[0] += 1

    difference_P = (
        velocity(features_PF, time_E, conditions_EC, segments) - velocity(moved_PF, time_E, conditions_EC, segments)
    ).abs().sum(1)  # fmt: skip

    assert (difference_P[1:3] > 1e-4).all()
    assert (difference_P[3:] == 0).all()


@torch.no_grad()
def test_the_velocity_depends_on_time_conditions_and_count() -> None:
    velocity = field()
    one, many = torch.zeros(1, 2), torch.zeros(5, 2)
    time_E, conditions_EC = torch.tensor([0.2]), torch.zeros(1, 5)
    plain = velocity(one, time_E, conditions_EC, segments_of(torch.tensor([1])))
    assert not torch.allclose(plain, velocity(one, time_E + 0.3, conditions_EC, segments_of(torch.tensor([1]))))
    assert not torch.allclose(plain, velocity(one, time_E, conditions_EC + 1, segments_of(torch.tensor([1]))))
    assert not torch.allclose(plain, velocity(many, time_E, conditions_EC, segments_of(torch.tensor([5])))[:1])


@pytest.mark.parametrize("shared", [0.0, 0.25, 0.9])
def test_noise_has_a_spread_of_one_and_the_muons_of_an_event_share_their_part_of_it(shared: float) -> None:
    segments = segments_of(torch.full((20_000,), 2))
    noise_PF = draw_noise(segments, 2, shared, torch.Generator().manual_seed(1))
    first, second = noise_PF[::2, 0], noise_PF[1::2, 0]
    together = torch.corrcoef(torch.stack([first, second, noise_PF[::2, 1]]))
    assert float(noise_PF.std()) == pytest.approx(1, abs=0.02)
    assert float(together[0, 1]) == pytest.approx(shared, abs=0.03)
    assert float(together[0, 2]) == pytest.approx(0, abs=0.03)


class Decay(VelocityField):
    """dx/dt = -x."""

    def forward(self, features_PF: Tensor, time_E: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        assert (spread(time_E.unsqueeze(1), segments) < 1).all()
        return -features_PF


def test_the_integrator_is_of_second_order() -> None:
    start = torch.ones(NUM, 2)
    segments = segments_of(COUNTS_E)
    errors = [
        float(
            integrate(Decay(2, SMALL_FLOW), start, torch.zeros(4, 5), segments, steps)[0, 0] - torch.tensor(-1.0).exp()
        )
        for steps in (4, 8)
    ]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)


def trained(**settings: object) -> FlowTask:
    task = make_flow(**settings)
    for seed in range(3):
        task.step(toy_batch(seed=seed))
    return task


def write_checkpoint(path: Path, task_state: dict[str, object], model: str) -> Path:
    network = SMALL_FLOW.model_dump() if model == "flow" else {}
    config = Config.model_validate({"trainer": {"model": model, model: {"network": network}}})
    torch.save(
        {
            "format": FORMAT,
            "task": task_state,
            "config": config.model_dump_json(),
            "step": 3,
            "position": StreamPosition.start(1).model_dump_json(),
        },
        path,
    )
    return path


def test_a_checkpoint_gives_a_sampler_that_repeats_itself(tmp_path: Path) -> None:
    task = trained()
    (events,) = toy_batch(counts=[*range(8)] * 4).microbatches
    primary_E4, counts_E = events.event_columns["primary"], events.offsets_E1.diff()
    of_task = task.sampler()
    of_file = load_trained(write_checkpoint(tmp_path / "step-3.pt", saved(task), "flow"), CPU).generator

    draws = []
    for sampler in (of_task, of_file, of_file):
        random = torch.Generator().manual_seed(4)
        torch.rand(2)  # the global generator does not matter
        drawn_E = sampler.draw_counts(primary_E4, random)
        draws.append((drawn_E, sampler.draw_muons(primary_E4, counts_E, random)))

    for counts, muons in draws[1:]:
        assert torch.equal(counts, draws[0][0])
        assert torch.equal(muons, draws[0][1])
    assert muons.shape == (int(counts_E.sum()), 3)
    assert muons.isfinite().all()
    assert (muons[:, 0] > 0).all()
    other = of_file.draw_muons(primary_E4, counts_E, torch.Generator().manual_seed(5))
    assert not torch.equal(other, muons)
    cdf = of_file.count_cdf(primary_E4, counts_E)
    assert cdf is not None
    assert ((cdf[0] >= 0) & (cdf[0] <= cdf[1]) & (cdf[1] <= 1)).all()


def test_events_without_muons_are_generated_too() -> None:
    sampler = trained().sampler()
    muons = sampler.draw_muons(torch.ones(3, 4), torch.zeros(3, dtype=torch.int64), torch.Generator())
    assert muons.shape == (0, 3)


def test_what_is_generated_is_bounded() -> None:
    task = trained(max_count=2, max_deviation=0.5)
    primary_E4 = toy_batch(200, seed=9).microbatches[0].event_columns["primary"]
    found = task.generate(primary_E4)
    assert found.counts_E.max() == 2
    assert found.num_capped > 0
    assert task.networks.standardise.features(found.muons_P3).abs().max() <= 0.5 + 1e-3


def test_a_checkpoint_of_one_model_is_no_sampler_of_the_other(tmp_path: Path) -> None:
    wgan = make_wgan()
    wgan.step(toy_batch())
    path = write_checkpoint(tmp_path / "mixed.pt", wgan.state_dict(), "flow")
    with pytest.raises(BadInputError, match=r"mixed\.pt: its model can't be built"):
        load_trained(path, CPU)


@pytest.mark.parametrize(("written", "wanted"), [("wgan", "flow"), ("flow", "wgan")])
def test_training_does_not_go_on_from_a_checkpoint_of_another_model(written: str, wanted: str) -> None:
    config = Config.model_validate({"trainer": {"model": wanted}})
    checkpoint = {"step": 7, "config": json.dumps({"trainer": {"model": written}})}
    with pytest.raises(BadInputError, match=f"step 7 is of the model '{written}'.*--model {written}.*--fresh"):
        require_model(checkpoint, config)
    require_model(checkpoint, Config.model_validate({"trainer": {"model": written}}))


def test_a_sampler_of_a_flow_that_saw_no_muons_is_refused() -> None:
    config = FlowConfig(network=FlowNetworkConfig.model_validate(SMALL_FLOW.model_dump()))
    with pytest.raises(RuntimeError, match="not fitted"):
        FlowSampler.from_state(config, make_flow().state_dict(), CPU)
