"""Count head: its line, its bounds, its sampling, and the mean of its weights."""

from __future__ import annotations

import pytest
import torch
from toy_events import toy_batch
from toy_tasks import MAKE

from workloads.muons.models import count_head
from workloads.muons.models.config import MuonNetworkConfig
from workloads.muons.models.count_head import (
    CONDITION_LIMIT,
    LOG_MEAN_RANGE,
    LOG_SHAPE_RANGE,
    CountMixture,
    MixtureCountHead,
    count_nll,
    cumulative,
)

CONFIG = MuonNetworkConfig()


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    monkeypatch.setattr(count_head, "_HIDDEN", 16)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_mean_beyond_its_bound_comes_back(sign: int) -> None:
    """Behind a plain clamp the gradient is 0: after one extreme batch the head stayed there for good."""
    head = MixtureCountHead(CONFIG)
    conditions_EC = torch.randn(64, 5)
    with torch.no_grad():
        head.output.bias[2:] = sign * 40.0

    mixture = head(conditions_EC)
    count_nll(mixture, torch.full((64,), 5)).backward()

    bounds = (LOG_MEAN_RANGE, mixture.log_means_EK), (LOG_SHAPE_RANGE, mixture.log_shapes_EK)
    assert all(torch.equal(values, torch.full_like(values, limits[sign > 0])) for limits, values in bounds)
    gradient = head.output.bias.grad
    assert gradient is not None
    assert bool((gradient[2:4] * sign > 0).all())  # a step against it leads back


def test_primaries_far_from_all_data_are_those_at_the_limit() -> None:
    head = MixtureCountHead(CONFIG)
    torch.nn.init.ones_(head.line.weight)

    at, beyond = (head(torch.full((1, 5), value)) for value in (CONDITION_LIMIT, 100.0))

    assert all(torch.equal(one, other) for one, other in zip(at, beyond, strict=True))


def test_components_are_drawn_by_their_weights() -> None:
    weights_KE = torch.tensor([[0.2], [0.5], [0.3]])
    torch.testing.assert_close(cumulative(weights_KE)[:, 0], torch.tensor([0.2, 0.7, 1.0]))

    class Fixed(MixtureCountHead):
        def forward(self, conditions_EC: torch.Tensor) -> CountMixture:
            num = len(conditions_EC)
            means_EK = torch.tensor([[-12.0, 12.0]]).expand(num, -1)
            return CountMixture(torch.tensor([[0.3, 0.7]]).log().expand(num, -1), means_EK, torch.full((num, 2), 8.0))

    counts_E = Fixed(CONFIG).sample(torch.zeros(20_000, 5), torch.Generator().manual_seed(1))

    assert float((counts_E > 0).float().mean()) == pytest.approx(0.7, abs=0.015)


@pytest.mark.parametrize("model", MAKE)
def test_counts_are_drawn_from_the_mean_of_the_weights(model: str) -> None:
    task = MAKE[model]()
    for seed in range(3):
        task.step(toy_batch(seed=seed))
    networks = task.networks.modules()
    latest, average = networks["count_head"].state_dict(), networks["count_head_average"].state_dict()
    assert any(not torch.equal(latest[name], average[name]) for name in latest)
    block = toy_batch(50, seed=9)
    before = task.held_out(block)["m_loss"]
    for parameter in networks["count_head"].parameters():
        torch.nn.init.zeros_(parameter)
    assert task.held_out(block)["m_loss"] == before

    for parameter in networks["count_head_average"].parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        networks["count_head_average"].output.bias[2:4] = LOG_MEAN_RANGE[0]
    counts_E = task.generate(block.microbatches[0].event_columns["primary"]).counts_E
    assert not counts_E.any()
