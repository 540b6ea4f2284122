"""Coupling of the likelihood model's muons: still a density, exchangeable, and it finds what independence can't."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from toy_events import make_microbatch, toy_batch, toy_microbatch

from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.base.segments import Segments
from workloads.muons.models.config import LikelihoodConfig
from workloads.muons.models.likelihood import LikelihoodTask
from workloads.muons.models.likelihood_densities import NUM_KNOWN, Draws, MuonDensities, draw

NETWORK = {"hidden": 16, "energy_cut_gev": 0.0}


def make(coupling: bool = True, steps: int = 0) -> LikelihoodTask:
    config = LikelihoodConfig.model_validate({"network": NETWORK | {"coupling": coupling}, "schedule_steps": steps})
    return LikelihoodTask(config, StepContext(torch.device("cpu"), seed=1))


def coupled() -> MuonDensities:
    """Densities of which the second half depends strongly on the first."""
    muons = make().networks.muons.requires_grad_(False)
    assert muons.coupling is not None
    muons.shift.weight[:, -muons.coupling.num_inputs :].normal_()
    muons.context.get_parameter("0.weight")[:, -muons.coupling.num_inputs :].normal_()
    return muons


def opposite_pairs(seed: int, num_events: int = 64) -> Batch:
    """Pairs of muons: where one has a high energy the other has a low one."""
    (events,) = toy_batch(num_events, seed, counts=[2] * num_events).microbatches
    muons_P3 = events.particle_columns["muons"].clone()
    lg_E2 = torch.randn(num_events, 1, generator=torch.Generator().manual_seed(seed)) * torch.tensor([0.5, -0.5])
    muons_P3[:, 0] = 10 ** (2 + lg_E2.flatten())
    return Batch((replace(events, particle_columns={"muons": muons_P3}),))


@pytest.mark.parametrize(("size", "coupling"), [(1, False), (3, True)])
def test_drawn_muons_have_the_density_that_is_said_which_integrates_to_1(size: int, coupling: bool) -> None:
    """The mean of q / p over draws from p is 1 for any density q that is narrower than p."""
    torch.manual_seed(9)  # densities without narrow peaks, where few draws hold most of the mean
    muons, num = coupled() if coupling else make(coupling=False).networks.muons.requires_grad_(False), 20_000
    segments = Segments.from_counts(torch.full((num,), size), num * size)
    known_EK = torch.randn(1, NUM_KNOWN).expand(num, -1)
    drawn = Draws.of(segments, muons.latent, muons.num_features, torch.Generator().manual_seed(1))
    z_uniform, z_normal = drawn.z_uniform_E1[:1].expand(num, -1), drawn.z_normal_EZ[:1].expand(num, -1)
    features_PF = muons.draw(known_EK, segments, drawn._replace(z_uniform_E1=z_uniform, z_normal_EZ=z_normal))
    first_E1 = draw(muons.prior(known_EK), z_uniform, z_normal[:, :1])
    z_EZ = torch.cat([first_E1, z_normal[:, 1:]], 1)

    nll_E = muons.nll_given(z_EZ, features_PF, known_EK, segments)
    wide_EX = features_PF.view(num, -1)
    away_EX = (wide_EX - wide_EX.mean(0)) / (0.3 * wide_EX.std(0))
    log_q_E = (-0.5 * away_EX.square() - (0.3 * wide_EX.std(0)).log() - 0.5 * math.log(2 * math.pi)).sum(1)

    assert float((log_q_E + nll_E).exp().mean()) == pytest.approx(1, abs=0.1)


def test_the_second_half_depends_on_the_first_and_on_nothing_else() -> None:
    muons, segments = coupled(), Segments.from_counts(torch.tensor([4, 3]), 7)
    known_EK, z_EZ, features_PF = torch.randn(2, NUM_KNOWN), torch.randn(2, 2), torch.randn(7, 2)

    def nll(order: tuple[int, ...]) -> float:
        return float(muons.nll_given(z_EZ, features_PF[[*order, 4, 5, 6]], known_EK, segments)[0])

    of_halves: dict[frozenset[int], list[float]] = {}
    for order in permutations(range(4)):
        of_halves.setdefault(frozenset(order[:2]), []).append(nll(order))
    assert len(of_halves) == 6
    for same in of_halves.values():
        assert same == pytest.approx([same[0]] * 4, rel=1e-4)
    assert max(same[0] for same in of_halves.values()) - min(same[0] for same in of_halves.values()) > 0.01


def test_the_order_of_muons_in_the_files_does_not_matter() -> None:
    """Sorted by energy, first halves would always be the lower ones."""
    task = make()
    (events,) = opposite_pairs(0).microbatches
    muons_P3 = events.particle_columns["muons"].view(-1, 2, 3)
    low_first = muons_P3[:, 0, 0] < muons_P3[:, 1, 0]
    sorted_P3 = torch.where(low_first[:, None, None], muons_P3, muons_P3.flip(1)).flatten(0, 1)
    sorted_events = replace(events, particle_columns={"muons": sorted_P3})
    task.observe(Batch((sorted_events,)))

    present = task.networks.present(task.networks.with_noise(sorted_events, torch.Generator().manual_seed(1)))
    seen = int((present.features_PF[::2, 0] < present.features_PF[1::2, 0]).sum())

    assert 16 < seen < 48
    torch.testing.assert_close(
        present.features_PF.view(-1, 2, 2).sum(1), task.networks.standardise.features(sorted_P3).view(-1, 2, 2).sum(1)
    )


def test_events_of_one_muon_and_batches_without_events_are_trained() -> None:
    task = make()
    for counts in ([1, 1, 1, 0], [0, 0, 0, 0], [1, 2, 3, 7]):
        metrics = task.step(Batch((toy_microbatch(4, 0, counts),)))
        assert metrics["skipped_updates"] == 0
    assert task.generate(torch.empty(0, 4)).counts_E.numel() == 0
    empty = make_microbatch(torch.empty(0, 4), torch.empty(0, dtype=torch.int64), torch.empty(0, 3))
    task.step(Batch((empty,)))


def test_opposite_energies_are_found() -> None:
    task = make(steps=150)
    for seed in range(150):
        task.step(opposite_pairs(seed))
    (events,) = opposite_pairs(999, 1000).microbatches
    primary_E4, counts_E = events.event_columns["primary"], events.offsets_E1.diff()
    muons_P3 = task.sampler().draw_muons(primary_E4, counts_E, torch.Generator().manual_seed(1))
    correlation = torch.corrcoef(muons_P3[:, 0].log10().view(-1, 2).T)[0, 1]
    assert correlation < -0.9, "independent muons would have none"
