"""Densities of the likelihood model: what is drawn, what is said of it, and the bound between them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from toy_events import make_microbatch, split, toy_batch

from common.errors import BadInputError
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.base.segments import Segments
from workloads.muons.models.likelihood.config import LikelihoodConfig, LikelihoodNetworkConfig
from workloads.muons.models.likelihood.mixture import draw, log_density, mixture_layer
from workloads.muons.models.likelihood.model import NUM_KNOWN, MuonDensities
from workloads.muons.models.likelihood.networks import known
from workloads.muons.models.likelihood.panel import LikelihoodPanel
from workloads.muons.models.likelihood.sampler import LikelihoodSampler
from workloads.muons.models.likelihood.task import LikelihoodTask
from workloads.muons.models.standardise import Standardise

CPU = torch.device("cpu")
SMALL = {"hidden": 16, "count_hidden": 16, "energy_cut_gev": 0.0}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


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
    mixture_1X = 2 * mixture_layer(3, 4, 1.5, -1.0)(torch.randn(1, 3)).detach()
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
        noise = (torch.randn(len(present.known_GK), 1) for _ in range(300))
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
def test_the_order_of_an_events_muons_does_not_matter(azimuth: str) -> None:
    task = trained(2, network={"azimuth": azimuth})
    (events,) = toy_batch(1, seed=5, counts=[20]).microbatches
    noise_1Z, segments = torch.randn(1, 2), Segments.from_counts(torch.tensor([20]), 20)
    known_1K, features_PF = (
        torch.randn(1, NUM_KNOWN),
        task.networks.standardise.features(events.particle_columns["muons"]),
    )

    one, other = (
        task.networks.muons.bound(features, known_1K, segments, noise_1Z)
        for features in (features_PF, features_PF[torch.randperm(20)])
    )

    torch.testing.assert_close(one.muons_E, other.muons_E)
    torch.testing.assert_close(one.shared_E, other.shared_E)


# ---- Training.


@pytest.mark.parametrize("azimuth", ["symmetric", "learned"])
def test_training_lowers_the_held_out_likelihood(azimuth: str) -> None:
    network, block = {"azimuth": azimuth}, toy_batch(64, seed=77)
    before, after = (trained(steps, network=network).held_out(block) for steps in (1, 60))

    assert after["nll"] < before["nll"] - 1
    assert after["m_loss"] < before["m_loss"]


@pytest.mark.parametrize("azimuth", ["symmetric", "learned"])
@pytest.mark.parametrize("cut_gev", [0.0, 1.0])
def test_the_held_out_likelihood_is_a_density_in_lg_energy_and_metres(azimuth: str, cut_gev: float) -> None:
    """So runs with other standardisations, offsets and cuts can be compared: normal features integrate to 1."""
    config = LikelihoodNetworkConfig.model_validate({"azimuth": azimuth, "energy_cut_gev": cut_gev})
    standardise = Standardise(config, cut_gev)
    drawn = torch.Generator().manual_seed(1)
    energy_P, x_P, y_P = cut_gev + 10 ** torch.randn(500, generator=drawn), *torch.randn(2, 500, generator=drawn)
    standardise.fit_features(torch.stack([energy_P, x_P, y_P], 1))
    lg_energy_A = torch.linspace(math.log10(max(cut_gev, 1e-3)) + 1e-6, 6, 4001 if cut_gev else 801)
    if azimuth == "symmetric":
        radius_B = torch.linspace(0, 30, 3001)[1:]
        positions_B2 = torch.stack([radius_B, torch.zeros_like(radius_B)], 1)
        area_B = 2 * math.pi * radius_B * 0.01
    else:
        axis = torch.linspace(-8, 8, 81)
        positions_B2 = torch.cartesian_prod(axis, axis)
        area_B = torch.full((len(positions_B2),), 0.2**2)
    total = 0.0
    for lg_energy_C in lg_energy_A.split(100):
        pairs = len(lg_energy_C), len(positions_B2)
        muons_P3 = torch.cat(
            [
                (10**lg_energy_C).repeat_interleave(pairs[1])[:, None],
                positions_B2.repeat(pairs[0], 1),
            ],
            1,
        )
        features_PF = standardise.features(muons_P3)
        log_p_P = (-0.5 * features_PF.square() - 0.5 * math.log(2 * math.pi)).sum(1) + standardise.log_scale(muons_P3)
        total += float((log_p_P.exp().view(pairs) * area_B).sum())

    # A symmetric feature lg(r + r0) below r = 0 is outside; so is a little below the lowest energies.
    assert total * float(lg_energy_A[1] - lg_energy_A[0]) == pytest.approx(1, abs=0.04)


def test_the_panels_score_is_the_held_out_likelihood() -> None:
    block = toy_batch(64, seed=77)
    found = LikelihoodPanel(trained(3), seed=1).evaluate(block)

    assert found is not None
    assert found.scalars["panel/score"] == found.scalars["train/held_out_nll"]
    assert found.scalars["panel/log10_energy_w1"] > 0


@pytest.mark.parametrize(("chunk_particles", "coupling"), [(1, False), (16, False), (16, True)])
def test_parts_of_a_batch_add_up_to_it(chunk_particles: int, coupling: bool) -> None:
    network = {"coupling": coupling}
    whole, cut = make(network=network), make(network=network, chunk_particles=chunk_particles)
    for task in (whole, cut):
        task.step(toy_batch())
    for one, other in zip(whole.networks.muons.parameters(), cut.networks.muons.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    block = split(toy_batch(32, seed=5), [8, 24])
    assert float(whole.held_out(block)["m_loss"]) == pytest.approx(float(cut.held_out(block)["m_loss"]), rel=1e-3)


def test_the_held_out_likelihood_is_that_of_all_muons() -> None:
    """z is fitted to the muons that are seen: of a subset whose likelihood is multiplied up, no bound is left."""
    task = trained(30, max_muons=1)
    large = toy_batch(2, seed=4, counts=[400, 3])
    found = task.held_out(large)["nll"]
    task.config = task.config.model_copy(update={"max_muons": 0})

    assert torch.equal(found, task.held_out(large)["nll"])


def test_a_thinned_event_has_the_weight_of_all_its_muons() -> None:
    networks = (task := trained(2, max_muons=50)).networks
    (events,) = toy_batch(4, seed=4, counts=[400, 0, 50, 3]).microbatches
    seen = task.prepare(events, random())
    assert seen.num_particles == 50 + 50 + 3

    bound = networks._bound(networks.muons, networks.present(seen))
    weight_G = torch.tensor([400**0.75 / 50, 50**0.75 / 50, 3**0.75 / 3])

    total = ((bound.muons_E + bound.shared_E) * weight_G).sum()
    torch.testing.assert_close(networks.weighted_bound(seen)[0], total)
    assert float(networks.total_weight(seen)) == pytest.approx(400**0.75 + 50**0.75 + 3**0.75)


# ---- The energy cut.


def test_no_muon_below_the_energy_cut_is_generated() -> None:
    task = make(network={"energy_cut_gev": 2.0}, schedule_steps=40)
    batches = [above(toy_batch(seed=seed), 2.0) for seed in range(40)]
    for batch in batches:
        assert task.step(batch)["below_cut"] == 0

    energy_P = task.generate(batches[0].microbatches[0].event_columns["primary"].repeat(50, 1)).muons_P3[:, 0]

    assert len(energy_P) > 1000
    assert float(energy_P.min()) >= 2.0


def test_data_below_the_energy_cut_are_refused_at_the_start_and_counted_later() -> None:
    with pytest.raises(BadInputError, match=r"trainer\.likelihood\.network\.energy_cut_gev = 100, but .* set it to"):
        make(network={"energy_cut_gev": 100.0}).step(toy_batch())

    task = make(network={"energy_cut_gev": 100.0})
    task.step(above(toy_batch(), 100.0))
    batch = toy_batch(seed=1)
    (events,) = batch.microbatches
    share = float((events.particle_columns["muons"][:, 0] < 100.0).float().mean())
    assert float(task.step(batch)["below_cut"]) == pytest.approx(share)
    assert share > 0


def test_the_lowest_energy_is_compared_as_it_is_stored_and_the_advice_can_be_followed() -> None:
    batch = above(toy_batch(), 1.0)
    (events,) = batch.microbatches
    energy_P = events.particle_columns["muons"][:, 0]
    energy_P[3] = 0.9  # 0.899999976 as float32
    with pytest.raises(BadInputError) as refused:
        make(network={"energy_cut_gev": 1.0}).step(batch)

    (told,) = re.findall(r"a muon of ([\d.]+) GeV", str(refused.value))
    for cut_gev in (0.9, float(told)):
        assert make(network={"energy_cut_gev": cut_gev}).step(batch)["below_cut"] == 0
    energy_P[3] = torch.tensor(0.9).nextafter(torch.tensor(0.0))
    with pytest.raises(BadInputError):
        make(network={"energy_cut_gev": 0.9}).step(batch)


def above(batch: Batch, least_gev: float) -> Batch:
    """The same events, each muon with so much more energy."""
    (events,) = batch.microbatches
    shifted_P3 = events.particle_columns["muons"] + torch.tensor([least_gev, 0.0, 0.0])
    counts_E = events.offsets_E1.diff()
    return Batch((make_microbatch(events.event_columns["primary"], counts_E, shifted_P3),))


# ---- The sampler.


@pytest.mark.parametrize("coupling", [False, True])
def test_the_sampler_of_a_checkpoint_draws_what_the_task_draws(coupling: bool) -> None:
    task = trained(20, network={"coupling": coupling})
    primary_E4 = toy_batch(64, seed=9).microbatches[0].event_columns["primary"]
    found = []
    for sampler in (task.sampler(), LikelihoodSampler.from_state(task.config, task.state_dict(), CPU)):
        generator = random()
        counts_E = sampler.draw_counts(primary_E4, generator)
        found.append((counts_E, sampler.draw_muons(primary_E4, counts_E, generator)))

    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][1].shape == (int(found[0][0].sum()), 3)
    assert bool(found[0][1].isfinite().all())


def test_generated_muons_have_the_distribution_that_the_densities_say() -> None:
    """Distribution of lg E: the prior of z and the density given z, put together, against drawn muons."""
    task = trained(60, network={"latent": 1})
    primary_14 = toy_batch(1, seed=9).microbatches[0].event_columns["primary"]
    sampler, num = task.sampler(), 4000
    muons_P3 = sampler.draw_muons(primary_14.expand(num, -1), torch.ones(num, dtype=torch.int64), random())
    features_P = task.networks.standardise.features(muons_P3)[:, 0]
    muons = task.networks.averaged.used

    with torch.no_grad():
        known_1K = known(task.networks.standardise, primary_14, torch.ones(1, dtype=torch.int64))
        z_Z1 = draw(muons.prior(known_1K.expand(500, -1)), torch.rand(500, 1), torch.randn(500, 1))
        _, energy_ZX, shift_ZF = muons._of_event(torch.cat([known_1K.expand(500, -1), z_Z1], 1))
        grid = torch.linspace(-6, 6, 601)
        density = torch.stack([log_density(energy_ZX, x - shift_ZF[:, :1]).exp().mean() for x in grid])
    cumulative = (density.cumsum(0) * 0.02).numpy()
    result = stats.ks_1samp(features_P.numpy(), lambda x: cumulative[grid.numpy().searchsorted(x).clip(0, 600)])
    assert result.statistic < 0.05
