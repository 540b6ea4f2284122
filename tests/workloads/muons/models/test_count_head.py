"""Count head: its line, its bounds, its sampling, and the mean of its weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest
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
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count_head, "_HIDDEN", 16)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_mean_beyond_its_bound_comes_back(sign: int) -> None:
    """Behind a plain clamp the gradient is 0: after one extreme batch the head stayed there for good."""
    head = MixtureCountHead(CONFIG)
    conditions_EC = torch.randn(64, 5)
    biases = head.output.bias, head.form[-1].bias
    with torch.no_grad():
        biases[0].fill_(sign * 40.0)
        biases[1][6:] = sign * 40.0

    mixture = head(conditions_EC)
    count_nll(mixture, torch.full((64,), 5)).backward()

    bounds = (LOG_MEAN_RANGE, mixture.log_means_EK), (LOG_SHAPE_RANGE, mixture.log_shapes_EK)
    assert all(bool((values - limits[sign > 0]).abs().max() < 1) for limits, values in bounds)
    assert biases[0].grad is not None
    assert float(biases[0].grad) * sign > 0  # a step against it leads back


def test_the_skewness_of_counts_is_learned_on_both_sides_of_a_negative_binomials() -> None:
    """At mean 60 and Fano factor 4, that of one negative binomial is 0.45: real iron has more, protons less."""
    random = torch.Generator().manual_seed(5)
    size, steps = 512, 400

    def drawn(side_E: torch.Tensor) -> torch.Tensor:
        first_E = torch.rand(len(side_E), generator=random) < torch.where(side_E > 0, 0.3, 0.25)
        mean_E = 60 * torch.where(side_E > 0, torch.where(first_E, 1.25, 0.893), torch.where(first_E, 0.65, 1.117))
        shape_E = torch.where(side_E > 0, 40.0, 60.0)
        return torch.poisson(torch._standard_gamma(shape_E, generator=random) * mean_E / shape_E, generator=random)

    head = MixtureCountHead(CONFIG)
    optimiser = torch.optim.Adam(head.parameters(), 1.6e-2, betas=(0.9, 0.99))
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 1.6e-2 * (1 - step / steps)
        conditions_EC = torch.zeros(size, 5)
        conditions_EC[:, 3] = torch.randint(2, (size,), generator=random) * 2.0 - 1
        loss = head.loss(conditions_EC, drawn(conditions_EC[:, 3]).long()) / size
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    for side in (-1.0, 1.0):
        conditions_EC = torch.zeros(200_000, 5)
        conditions_EC[:, 3] = side
        learned, true = skewness(head.sample(conditions_EC, random)), skewness(drawn(conditions_EC[:, 3]))
        assert learned == pytest.approx(true, abs=0.08), side


def skewness(counts_E: torch.Tensor) -> float:
    away_E = counts_E.double() - counts_E.double().mean()
    return float((away_E**3).mean() / away_E.square().mean() ** 1.5)


def test_the_excess_of_a_count_is_in_standard_deviations_of_the_mixture() -> None:
    mixture = CountMixture(*(torch.tensor([row]).log() for row in ([0.3, 0.7], [40.0, 90.0], [5.0, 20.0])))
    mean, variance = 75.0, 0.3 * (40 + 40**2 / 5 + 35**2) + 0.7 * (90 + 90**2 / 20 + 15**2)

    for counts, excess in ((75, 0.0), (100, 25 / variance**0.5), (10_000, CONDITION_LIMIT)):
        assert float(mixture.excess(torch.tensor([counts]))) == pytest.approx(excess, abs=1e-5), mean


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


def test_counts_of_a_shower_fall_with_its_mean_and_each_row_keeps_its_own_distribution() -> None:
    class Fixed(MixtureCountHead):
        def forward(self, conditions_EC: torch.Tensor) -> CountMixture:
            log_mean_E1 = torch.tensor([4.0, 2.0, 3.0])[conditions_EC[:, 4:].long()]
            log_means_EK = log_mean_E1 + torch.tensor([-0.3, 0.2])
            weights_EK = torch.tensor([[0.4, 0.6]]).expand_as(log_means_EK)
            return CountMixture(weights_EK.log(), log_means_EK, torch.tensor([[0.5, 2.0]]).expand_as(log_means_EK))

    head, random = Fixed(CONFIG), torch.Generator().manual_seed(1)
    conditions_EC, shower_E = torch.zeros(15_000, 5), torch.arange(5000).repeat(3)
    conditions_EC[:, 4] = torch.arange(3).flip(0).repeat_interleave(5000)
    counts_E = head.sample_showers(conditions_EC, shower_E, random)

    below_E, up_to_E = head.cdf(conditions_EC, counts_E)
    pit_E = (below_E + torch.rand(15_000, generator=random) * (up_to_E - below_E)).numpy()
    assert all(kstest(of_depth, "uniform").pvalue > 0.01 for of_depth in pit_E.reshape(3, 5000))
    _, deep_S, top_S = counts_E.view(3, 5000)
    assert bool((deep_S <= top_S).all())
    assert np.corrcoef(counts_E.view(3, 5000))[0, 2] > 0.8


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
        networks["count_head_average"].output.bias.fill_(LOG_MEAN_RANGE[0])
    counts_E = task.generate(block.microbatches[0].event_columns["primary"]).counts_E
    assert not counts_E.any()
