"""The likelihood model's training step and generation. What it shares with the WGAN: test_muon_tasks.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from host_syncs import no_host_sync
from toy_events import split, toy_batch
from toy_tasks import make_likelihood

from workloads.base.batch import Batch
from workloads.muons.models import likelihood_densities
from workloads.muons.models.config import LikelihoodConfig
from workloads.muons.models.likelihood import LikelihoodTask


def trained(**settings: Any) -> LikelihoodTask:
    task = make_likelihood(**settings)
    for seed in range(3):
        task.step(toy_batch(seed=seed))
    return task


@pytest.mark.parametrize("max_muons", [2, 2000])
def test_no_step_makes_the_host_wait_once_the_standardisation_is_fitted(
    monkeypatch: pytest.MonkeyPatch, max_muons: int
) -> None:
    monkeypatch.setattr(LikelihoodConfig, "max_muons", max_muons)
    task = make_likelihood(schedule_steps=5)
    task.step(toy_batch())
    for batch in (split(toy_batch(counts=[*range(8)] * 4), [10, 0, 22]), toy_batch(seed=3)):
        with no_host_sync():
            task.step(batch)


def test_it_learns_what_all_muons_of_an_event_share() -> None:
    """An offset of lg r, drawn once an event, is in no condition: only z can carry it."""

    def batch(num_events: int, seed: int) -> Batch:
        (plain,) = toy_batch(num_events, seed=seed, counts=[10] * num_events).microbatches
        random = torch.Generator().manual_seed(seed)
        factor_E = 10 ** (0.5 * torch.randn(num_events, generator=random))
        plain.particle_columns["muons"][:, 1:] *= factor_E.repeat_interleave(10).unsqueeze(1)
        return Batch((plain,))

    def spread_of_means(muons: torch.Tensor) -> float:
        lg_r_P = (torch.hypot(muons[:, 1], muons[:, 2]) + 0.1).log10()
        return float(lg_r_P.reshape(-1, 10).mean(1).std())

    task = make_likelihood(schedule_steps=150)
    for seed in range(150):
        task.step(batch(48, seed))
    (held_out,) = batch(600, 1000).microbatches
    primary_E4, counts_E = held_out.event_columns["primary"], held_out.offsets_E1.diff()
    muons = task.sampler().draw_muons(primary_E4, counts_E, torch.Generator().manual_seed(5))

    # Independent muons with the right spread of lg r, 0.58, would have 0.58 / sqrt(10) = 0.18.
    real = spread_of_means(held_out.particle_columns["muons"])
    assert spread_of_means(muons) == pytest.approx(real, rel=0.15)


# ---- Generation.


def test_events_without_muons_are_generated_too_and_large_ones_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood_densities, "MAX_COUNT", 2)
    task = trained()
    nothing = task.sampler().draw_muons(torch.ones(3, 4), torch.zeros(3, dtype=torch.int64), torch.Generator())
    assert nothing.shape == (0, 3)
    found = task.generate(toy_batch(200, seed=9).microbatches[0].event_columns["primary"])
    assert found.counts_E.min() == 0
    assert found.counts_E.max() == 2
