"""Standardisation of primaries and muons."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from workloads.muons.models.config import MuonNetworkConfig
from workloads.muons.models.standardise import Standardise


def some_primaries(num_events: int = 500) -> Tensor:
    torch.manual_seed(2)
    energy = 10 ** (5 + 3 * torch.rand(num_events))
    zenith = torch.rand(num_events)
    mass = torch.tensor([1.0, 4.0, 14.0, 56.0])[torch.randint(4, (num_events,))]
    return torch.stack([energy, zenith, mass, 1000 + 1500 * torch.rand(num_events)], 1)


def some_muons(num_particles: int = 2000) -> Tensor:
    torch.manual_seed(3)
    energy = 10 ** (1 + torch.randn(num_particles)).clamp(-2, 6)
    return torch.stack([energy, *(20 * torch.randn(2, num_particles))], 1)


def standardise(azimuth: Literal["symmetric", "learned"] = "symmetric") -> Standardise:
    return Standardise(MuonNetworkConfig(azimuth=azimuth, energy_cut_gev=0.0))


def test_conditions_are_the_five_named_quantities() -> None:
    primary = torch.tensor([[1e6, math.pi / 3, 10.0, 999.0]])

    conditions = standardise().conditions(primary)  # not fitted: mean 0 and spread 1 leave them as they are

    torch.testing.assert_close(conditions, torch.tensor([[6.0, 5.0, 0.5, 1.0, 3.0]]))


def test_learned_muons_come_back_from_their_features() -> None:
    fitted = standardise("learned")
    muons = some_muons()
    fitted.fit_features(muons)

    torch.testing.assert_close(fitted.muons(fitted.features(muons)), muons, rtol=1e-4, atol=1e-4)


def test_symmetric_muons_come_back_with_their_energy_and_radius_at_another_azimuth() -> None:
    fitted = standardise("symmetric")
    muons = some_muons()
    fitted.fit_features(muons)

    back = fitted.muons(fitted.features(muons))

    torch.testing.assert_close(back[:, 0], muons[:, 0], rtol=1e-4, atol=0)
    torch.testing.assert_close(back[:, 1:].norm(dim=1), muons[:, 1:].norm(dim=1), rtol=1e-4, atol=1e-4)
    azimuth = torch.atan2(back[:, 2], back[:, 1])
    assert azimuth.cos().mean().abs() < 0.1
    assert azimuth.sin().mean().abs() < 0.1


def test_muons_on_the_axis_and_primaries_at_the_surface_stay_finite() -> None:
    fitted = standardise()
    muons = torch.tensor([[0.0, 0.0, 0.0], [10.0, 0.0, 0.0]])
    primaries = torch.tensor([[1e5, 0.1, 0.0, 0.0], [1e5, 0.1, 1.0, 0.0]])
    fitted.fit_features(muons)
    fitted.fit_conditions(primaries)

    assert fitted.features(muons).isfinite().all()
    assert fitted.muons(fitted.features(muons)).isfinite().all()
    assert fitted.conditions(primaries).isfinite().all()


def test_a_column_without_spread_is_divided_by_1() -> None:
    fitted = standardise()
    primaries = some_primaries(11)
    primaries[:, 3] = 1948.3

    fitted.fit_conditions(primaries)

    assert fitted.condition_spread_C[4] == 1
    assert (fitted.condition_spread_C[:4] > 0.05).all()
    assert fitted.conditions(primaries)[:, 4].abs().max() < 1e-5


def test_conditions_and_features_are_fitted_apart_and_once_each_and_loaded_as_they_were_saved() -> None:
    saved, loaded = standardise(), standardise()
    saved.fit_conditions(some_primaries())
    assert (bool(saved.conditions_fitted), bool(saved.features_fitted)) == (True, False)
    assert (saved.has_conditions, saved.has_features) == (True, False)
    saved.fit_features(some_muons())
    for fit in (lambda: saved.fit_conditions(some_primaries()), lambda: saved.fit_features(some_muons())):
        with pytest.raises(RuntimeError, match="already fitted"):
            fit()

    loaded.load_state_dict(saved.state_dict())

    assert loaded.is_fitted
    assert torch.equal(loaded.conditions(some_primaries()), saved.conditions(some_primaries()))
    assert torch.equal(loaded.features(some_muons()), saved.features(some_muons()))
