"""Densities of the likelihood model: what is drawn, what is said of it, and the bound between them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from toy_events import make_microbatch, split, toy_batch
from toy_tasks import MAKE

from common.errors import BadInputError
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.base.segments import Segments
from workloads.muons.models.config import LikelihoodConfig, MuonNetworkConfig
from workloads.muons.models.likelihood import LikelihoodPanel, LikelihoodTask
from workloads.muons.models.likelihood_densities import (
    NUM_KNOWN,
    Draws,
    MuonDensities,
    draw,
    log_density,
    mixture_layer,
)
from workloads.muons.models.standardise import Standardise

CPU = torch.device("cpu")
SMALL = {"hidden": 16, "energy_cut_gev": 0.0}


def make(context: StepContext | None = None, network: dict[str, Any] | None = None, **settings: Any) -> LikelihoodTask:
    config = LikelihoodConfig.model_validate({"network": SMALL | (network or {}), **settings})
    return LikelihoodTask(config, context or StepContext(CPU, seed=1))


def trained(steps: int = 30, **settings: Any) -> LikelihoodTask:
    task = make(schedule_steps=steps, **settings)
    for seed in range(steps):
        task.step(toy_batch(seed=seed))
    return task


def random(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- Mixtures.


def test_a_mixture_is_a_density_and_is_drawn_from_as_it_says() -> None:
    mixture_1X = 2 * mixture_layer(3, 1.5, -1.0)(torch.randn(1, 3)).detach()
    grid_P1 = torch.linspace(-12, 12, 20_001)[:, None]
    density_P = log_density(mixture_1X.expand(len(grid_P1), -1), grid_P1).exp()
    step = float(grid_P1[1] - grid_P1[0])
    assert float(density_P.sum()) * step == pytest.approx(1, abs=1e-3)

    rows, generator = 20_000, random()
    uniform_P1, normal_P1 = torch.rand(rows, 1, generator=generator), torch.randn(rows, 1, generator=generator)
    drawn_P = draw(mixture_1X.expand(rows, -1), uniform_P1, normal_P1)[:, 0]
    cumulative = (density_P.double().cumsum(0) * step).numpy()
    grid = grid_P1[:, 0].numpy()
    assert (
        stats.ks_1samp(drawn_P.numpy(), lambda x: cumulative[grid.searchsorted(x).clip(0, len(grid) - 1)]).pvalue > 0.01
    )


# ---- The bound.


def evidence(muons: MuonDensities, features_PF: Tensor, known_1K: Tensor) -> float:
    """-ln p(muons | c, N) of one event, by quadrature over its one latent number."""
    grid_Z1 = torch.linspace(-8, 8, 1601)[:, None]
    num, size = len(grid_Z1), len(features_PF)
    segments = Segments.from_counts(torch.full((num,), size), num * size)
    known_ZK = known_1K.expand(num, -1)
    nll_Z = muons.nll_given(grid_Z1, features_PF.repeat(num, 1), known_ZK, segments)
    return -float(
        torch.logsumexp(muons.log_prior(grid_Z1, known_ZK, segments.counts_E) - nll_Z, 0) + math.log(16 / (num - 1))
    )


def gap(task: LikelihoodTask) -> float:
    """Mean of bound - evidence over events, nats."""
    muons = task.networks.muons
    (events,) = toy_batch(12, seed=99).microbatches
    present = task.networks.present(task.networks.with_noise(events, random()))
    found = []
    with torch.no_grad():
        noise = (torch.randn(len(present.known_GK), 1) for _ in range(100))
        bounds = [muons.bound(present.features_PF, present.known_GK, present.segments, of) for of in noise]
        bound_G = torch.stack([one.muons_E + one.shared_E for one in bounds]).mean(0)
        for event, muons_PF in enumerate(present.features_PF.split(present.segments.counts_E.tolist())):
            found.append(float(bound_G[event]) - evidence(muons, muons_PF, present.known_GK[event : event + 1]))
    assert min(found) > -0.1
    return sum(found) / len(found)


def test_the_bound_is_not_below_the_evidence_and_training_closes_the_gap() -> None:
    before, after = (gap(trained(steps, network={"latent": 1})) for steps in (1, 150))

    assert after < before
    assert after < 0.2


def test_for_the_prior_alone_a_large_event_has_more_weight() -> None:
    muons = trained(2).networks.muons
    z_EZ, known_EK = torch.randn(1, 2, requires_grad=True), torch.randn(1, NUM_KNOWN)

    def gradients(size: int) -> tuple[Tensor, ...]:
        log_p = muons.log_prior(z_EZ, known_EK, torch.tensor([size])).sum()
        return torch.autograd.grad(log_p, [z_EZ, *muons.prior.parameters()])

    (of_z, *of_one), (z_of_many, *of_many) = gradients(1), gradients(16)

    torch.testing.assert_close(z_of_many, of_z)
    for one, many in zip(of_one, of_many, strict=True):
        torch.testing.assert_close(many, 8 * one)


@pytest.mark.parametrize("azimuth", ["symmetric", "learned"])
def test_drawn_muons_have_the_density_that_is_said_which_integrates_to_1(azimuth: str) -> None:
    """The mean of q / p over draws from p is 1 for any density q that is narrower than p."""
    torch.manual_seed(9)  # densities without narrow peaks, where few draws hold most of the mean
    muons, num = make(network={"azimuth": azimuth}).networks.muons.requires_grad_(False), 20_000
    segments, known_EK = Segments.from_counts(torch.ones(num, dtype=torch.int64), num), torch.randn(1, NUM_KNOWN)
    known_EK = known_EK.expand(num, -1)
    drawn = Draws.of(segments, muons.latent, muons.num_features, random(1))
    z_uniform, z_normal = drawn.z_uniform_E1[:1].expand(num, -1), drawn.z_normal_EZ[:1].expand(num, -1)
    features_PF = muons.draw(known_EK, segments, drawn._replace(z_uniform_E1=z_uniform, z_normal_EZ=z_normal))
    z_EZ = torch.cat([draw(muons.prior(known_EK), z_uniform, z_normal[:, :1]), z_normal[:, 1:]], 1)

    nll_E = muons.nll_given(z_EZ, features_PF, known_EK, segments)
    spread_F = 0.3 * features_PF.std(0)
    away_PF = (features_PF - features_PF.mean(0)) / spread_F
    log_q_E = (-0.5 * away_PF.square() - spread_F.log() - 0.5 * math.log(2 * math.pi)).sum(1)

    assert float((log_q_E + nll_E).exp().mean()) == pytest.approx(1, abs=0.1)


def test_a_learned_azimuth_has_a_periodic_density_at_first_flat() -> None:
    networks, num = trained(1, network={"azimuth": "learned"}).networks, 512
    muons, turn_P = networks.muons.requires_grad_(False), torch.arange(num) * (2 * math.pi / num)
    segments, known_EK = Segments.from_counts(torch.ones(num, dtype=torch.int64), num), torch.zeros(num, NUM_KNOWN)

    def nll(shift: float) -> Tensor:
        features_PF = torch.stack([0 * turn_P, 0 * turn_P, turn_P + shift], 1)
        return muons.nll_given(torch.zeros(num, 2), features_PF, known_EK, segments)

    first_P, muons.shift.bias[2] = nll(0), 2.5
    form = torch.tensor([1.0, 6.0, 2.0]).repeat_interleave(8)  # far means, wide spreads
    muons.get_submodule("positions.1.network.3").bias.normal_(generator=random()).mul_(form)
    peaked_P = nll(0)

    assert float(first_P.std()) < 0.1 < float(peaked_P.std())
    torch.testing.assert_close(peaked_P, nll(2 * math.pi))
    assert float((first_P.mean() - peaked_P).exp().mean()) == pytest.approx(1, abs=0.01)


# ---- Training.


def test_training_lowers_the_held_out_likelihood_of_learned_azimuths_too() -> None:
    network, block = {"azimuth": "learned"}, toy_batch(64, seed=77)
    before, after = (trained(steps, network=network).held_out(block) for steps in (1, 60))

    assert after["nll"] < before["nll"] - 1
    assert after["m_loss"] < before["m_loss"]


@pytest.mark.parametrize(("azimuth", "cut_gev"), [("symmetric", 1.0), ("learned", 0.0)])
def test_the_held_out_likelihood_is_a_density_in_lg_energy_and_metres(azimuth: str, cut_gev: float) -> None:
    """So runs with other standardisations, offsets and cuts can be compared: by the derivatives of the features."""
    config = MuonNetworkConfig.model_validate({"azimuth": azimuth, "energy_cut_gev": cut_gev})
    standardise = Standardise(config)
    inputs = torch.randn(3, 500, generator=random(), dtype=torch.float64)
    inputs[0] += 1.5  # lg E
    lg_energy_P, x_P, y_P = inputs.requires_grad_(True)
    muons_P3 = torch.stack([cut_gev + 10**lg_energy_P, x_P, y_P], 1)
    standardise.double().fit_features(muons_P3.detach())
    features_PF = standardise.features(muons_P3)
    slopes_F3P = torch.stack(
        [torch.autograd.grad(one_P.sum(), inputs, retain_graph=True)[0] for one_P in features_PF.unbind(1)]
    )
    if azimuth == "symmetric":
        radius_P = torch.hypot(x_P, y_P).detach()
        by_radius_P = (slopes_F3P[1, 1] * x_P + slopes_F3P[1, 2] * y_P) / radius_P
        volume_P = slopes_F3P[0, 0] * by_radius_P / (2 * math.pi * radius_P)
    else:
        volume_P = slopes_F3P.permute(2, 0, 1).det()
    above_P = (muons_P3[:, 0] - cut_gev) / muons_P3[:, 0]  # d lg E / d lg(E - cut)

    torch.testing.assert_close(standardise.log_scale(muons_P3), (volume_P / above_P).log())


def test_the_panels_score_is_the_held_out_likelihood() -> None:
    block = toy_batch(64, seed=77)
    found = LikelihoodPanel(trained(3), seed=1).evaluate(block)

    assert found is not None
    assert found.scalars["panel/score"] == found.scalars["train/held_out_nll"]
    assert found.scalars["panel/log10_energy_w1"] > 0


@pytest.mark.parametrize("chunk_particles", [1, 16])
def test_parts_of_a_batch_add_up_to_it(chunk_particles: int) -> None:
    whole, cut = make(), make(chunk_particles=chunk_particles)
    for task in (whole, cut):
        task.step(toy_batch())
    for one, other in zip(whole.networks.muons.parameters(), cut.networks.muons.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    block = split(toy_batch(32, seed=5), [8, 24])
    assert float(whole.held_out(block)["m_loss"]) == pytest.approx(float(cut.held_out(block)["m_loss"]), rel=1e-3)


def test_a_thinned_event_has_the_weight_of_all_its_muons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LikelihoodConfig, "max_muons", 50)
    networks = (task := trained(2)).networks
    (large,) = toy_batch(4, seed=4, counts=[400, 0, 50, 3]).microbatches
    seen = task.prepare(large, random())
    assert seen.num_particles == 50 + 50 + 3

    events = networks.present(seen)
    bound = networks.muons.bound(events.features_PF, events.known_GK, events.segments, events.noise_GZ)
    weight_G = torch.tensor([400**0.75 / 50, 50**0.75 / 50, 3**0.75 / 3])

    total = ((bound.muons_E + bound.shared_E) * weight_G).sum()
    torch.testing.assert_close(networks.weighted_bound(seen)[0], total)
    assert float(networks.total_weight(seen)) == pytest.approx(400**0.75 + 50**0.75 + 3**0.75)


def test_radii_that_are_wider_in_events_with_more_muons_than_expected_are_learned() -> None:
    """Half of the correlation in real iron. ln N and its expectation go together: their difference is no easy input."""
    generator = random(8)

    def drawn(num_events: int) -> tuple[Tensor, Tensor, Tensor]:
        (events,) = toy_batch(num_events, seed=int(torch.randint(2**31, (), generator=generator))).microbatches
        primary_E4 = events.event_columns["primary"]
        mean_E = 10 ** (primary_E4[:, 0].log10() - 4.5)
        rate_E = mean_E * torch._standard_gamma(torch.full_like(mean_E, 25.0), generator=generator) / 25
        counts_E = torch.poisson(rate_E, generator=generator).long()
        shift_E = (counts_E - mean_E) / (mean_E + mean_E**2 / 25).sqrt()
        radius_P = 10 ** (1 + (0.06 * shift_E).repeat_interleave(counts_E) + 0.3 * torch.randn(int(counts_E.sum())))
        return primary_E4, counts_E, torch.stack([radius_P + 5, radius_P, 0 * radius_P], 1)

    steps, block = 400, drawn(1000)
    task = make(schedule_steps=steps)
    for _ in range(steps):
        task.step(Batch((make_microbatch(*drawn(64)),)))

    made_P3 = task.sampler().draw_muons(*block[:2], generator)
    assert intraclass(block[1], made_P3) == pytest.approx(intraclass(*block[1:]), rel=0.2)


def intraclass(counts_E: Tensor, muons_P3: Tensor) -> float:
    """Intraclass correlation of lg r: of two muons of an event, each event with the weight N."""
    lg_radius_P = torch.hypot(muons_P3[:, 1], muons_P3[:, 2]).clamp_min(0.1).double().log10()
    events = [(values - lg_radius_P.mean()) for values in lg_radius_P.split(counts_E.tolist()) if len(values) > 1]
    pairs = sum((one.sum() ** 2 - (one**2).sum()) / (len(one) - 1) for one in events)
    return float(pairs / len(lg_radius_P) / lg_radius_P.var())


# ---- The energy cut.


def test_no_muon_below_the_energy_cut_is_generated() -> None:
    task = make(network={"energy_cut_gev": 2.0}, schedule_steps=20)
    batches = [above(toy_batch(seed=seed), 2.0) for seed in range(20)]
    assert all(task.step(batch)["below_cut"] == 0 for batch in batches)

    energy_P = task.generate(batches[0].microbatches[0].event_columns["primary"].repeat(50, 1)).muons_P3[:, 0]

    assert len(energy_P) > 1000
    assert float(energy_P.min()) >= 2.0


def test_data_below_the_energy_cut_are_refused_at_the_start_and_counted_later() -> None:
    task = make(network={"energy_cut_gev": 100.0})
    task.step(above(toy_batch(), 100.0))
    batch = toy_batch(seed=1)
    share = float((batch.microbatches[0].particle_columns["muons"][:, 0] < 100.0).float().mean())
    assert float(task.step(batch)["below_cut"]) == pytest.approx(share)
    assert share > 0

    batch = above(toy_batch(), 1.0)
    energy_P = batch.microbatches[0].particle_columns["muons"][:, 0]
    energy_P[3] = 0.9  # 0.899999976 as float32
    for model, task_of in MAKE.items():
        match = rf"trainer\.{model}\.network\.energy_cut_gev = 1, but .* of 0\.89999997[\d]* GeV: set it to"
        with pytest.raises(BadInputError, match=match):
            task_of(network={"energy_cut_gev": 1.0}).step(batch)
    assert make(network={"energy_cut_gev": 0.9}).step(batch)["below_cut"] == 0, "as the energies are stored"


def above(batch: Batch, least_gev: float) -> Batch:
    """The same events, each muon with so much more energy."""
    (events,) = batch.microbatches
    shifted_P3 = events.particle_columns["muons"] + torch.tensor([least_gev, 0.0, 0.0])
    counts_E = events.offsets_E1.diff()
    return Batch((make_microbatch(events.event_columns["primary"], counts_E, shifted_P3),))
