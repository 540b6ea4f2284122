"""Subsets of the muons of very large events."""

from __future__ import annotations

import pytest
import torch
from host_syncs import no_host_sync
from toy_events import make_microbatch

from workloads.base.batch import Microbatch
from workloads.muons.models.likelihood import counts_of, thinned

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
