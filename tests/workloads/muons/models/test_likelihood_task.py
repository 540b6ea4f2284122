"""The likelihood model's training step and generation. What it shares with the WGAN: test_muon_tasks.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from host_syncs import no_host_sync
from toy_events import make_microbatch, split, toy_batch
from toy_tasks import make_likelihood

from workloads.base.batch import Batch, Microbatch
from workloads.muons.models import likelihood_densities
from workloads.muons.models.config import LikelihoodConfig
from workloads.muons.models.likelihood import LikelihoodTask, counts_of, thinned


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


COUNTS = (0, 3, 10, 5, 1)


def events(counts: tuple[int, ...] = COUNTS) -> Microbatch:
    """A muon's energy is its number."""
    muons_P3 = torch.arange(float(sum(counts))).unsqueeze(1).expand(-1, 3)
    return make_microbatch(torch.zeros(len(counts), 4), torch.tensor(counts, dtype=torch.int64), muons_P3)


def thin(most: int, seed: int = 0) -> Microbatch:
    return thinned(events(), most, torch.Generator().manual_seed(seed))


def test_an_event_keeps_at_most_so_many_of_its_own_muons_and_others_keep_all() -> None:
    few = thin(4)
    assert few.offsets_E1.tolist() == few.host_offsets_E1.tolist() == [0, 0, 3, 7, 11, 12]
    assert few.num_particles == len(few.particle_columns["muons"]) == 12
    muons = few.particle_columns["muons"][:, 0]
    assert muons[:3].tolist() == [0, 1, 2]
    assert muons[11].item() == 18
    of_third, of_fourth = set(muons[3:7].tolist()), set(muons[7:11].tolist())
    assert len(of_third) == len(of_fourth) == 4
    assert of_third <= set(range(3, 13))
    assert of_fourth <= set(range(13, 18))


def test_the_whole_count_is_kept_in_parts_too() -> None:
    few = thin(4)
    assert counts_of(few).tolist() == list(COUNTS)
    assert counts_of(few.part(2, 4)).tolist() == [10, 5]
    assert counts_of(events()).tolist() == list(COUNTS)


def test_every_muon_has_the_same_chance() -> None:
    random = torch.Generator().manual_seed(1)
    seen = torch.zeros(19)
    for _ in range(500):
        muons = thinned(events(), 4, random).particle_columns["muons"][:, 0].long()
        seen += torch.bincount(muons, minlength=19)
    chance = seen[3:13] / 500  # 0.4, sigma 0.022
    assert (chance - 0.4).abs().max() < 0.08
    assert seen[13:18].sum() == 4 * 500


def test_without_large_events_nothing_is_copied() -> None:
    all_of_them = events()
    assert thinned(all_of_them, 10, torch.Generator()) is all_of_them
    nothing = events(())
    assert thinned(nothing, 4, torch.Generator()) is nothing


def test_the_host_does_not_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    all_of_them = events()

    def from_host(*_: object) -> None:
        raise AssertionError("a copy from the host")

    monkeypatch.setattr(torch, "from_numpy", from_host)
    with no_host_sync():
        assert thinned(all_of_them, 4, torch.Generator().manual_seed(0)).num_particles == 12
