"""Posterior of a cascade's direction: its likelihood, its points, and what it finds of simulated cascades."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from direction_events import clean_event
from torch import Tensor

from workloads.direction import cascades
from workloads.direction import fits as classical
from workloads.direction.cascades import MOST_PULSES, cascade_posteriors, sphere
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.fits import classical_fits
from workloads.direction.geometry import ICE, WATER, Geometry, Medium, hex_geometry
from workloads.direction.light import JITTER_NS, ln_density, ln_density_table, padded_batches
from workloads.direction.metrics import angles_rad, unit_and_norm
from workloads.direction.simulator import EventsPlan, SimulatedEvents, file_rows

GEOMETRY = hex_geometry()
CASCADE = slice(CLASSICAL_FITS.index("cascade_x"), CLASSICAL_FITS.index("cascade_ln_l") + 1)


@pytest.fixture(scope="module")
def simulated() -> SimulatedEvents:
    """Cascades of 10 to 100 TeV in the toy array."""
    (rows,) = file_rows(EventsPlan(1, 1, seed=17, num_cascades=60, array="hex"), 0)
    return rows.events.take(np.flatnonzero(rows.added_E))


@pytest.fixture(scope="module")
def posteriors(simulated: SimulatedEvents) -> np.ndarray:
    return fitted(simulated)[:, CASCADE]


def fitted(events: SimulatedEvents, shift_m: float = 0.0) -> np.ndarray:
    offsets_E1 = np.concatenate([[0], np.cumsum(events.counts_E)])
    columns = (events.sensor_P, events.time_ns_P, events.charge_pe_P, events.auxiliary_P)
    return classical_fits(*columns, offsets_E1, Geometry(GEOMETRY.position_S3 + np.float32(shift_m)))


def test_directions_are_equally_dense_all_over_the_sphere() -> None:
    travel_G3 = sphere(48)
    assert torch.allclose(travel_G3.norm(dim=1), torch.ones(48))
    assert travel_G3.mean(0).norm() < 0.01
    assert torch.allclose(travel_G3.T @ travel_G3 / 48, torch.eye(3) / 3, atol=0.02)


@pytest.mark.parametrize("medium", [ICE, WATER])
def test_the_likelihood_is_that_of_a_poisson_process(medium: Medium) -> None:
    """Of three pulses, with a sensor that stands for four others; each number by hand, in float64."""
    position_P3 = torch.tensor([[10.0, 0.0, 0.0], [0.0, 30.0, -20.0], [-40.0, 5.0, 60.0]])
    time_P, sensors_K3 = torch.tensor([60.0, 180.0, 350.0]), torch.tensor([[10.0, 0.0, 0.0], [0.0, 0.0, 90.0]])
    geometry = Geometry(sensors_K3.numpy(), medium)
    (pulses,) = padded_batches(clean_event(position_P3, time_P, geometry))
    points_BM4, weight_K = torch.tensor([[[1.0, 2.0, -3.0, 10.0]]]), torch.tensor([1.0, 4.0])
    travel_G3 = sphere(5)

    ln_BMG, amount_BMG, light_B = cascades._ln_likelihood(
        points_BM4, travel_G3, torch.tensor([2.5]), pulses, sensors_K3.T[None], weight_K
    )

    def light(place_3: Tensor, travel_3: Tensor) -> float:
        offset_3 = place_3.double() - points_BM4[0, 0, :3].double()
        distance = float(offset_3.norm())
        off_cone = abs(float(offset_3 @ travel_3.double()) / distance - 1 / medium.phase_index)
        return math.exp(-distance / medium.absorption_m) / (1 + distance / 3) ** 1.5 * (0.15 + math.exp(-3 * off_cone))

    for direction, travel_3 in enumerate(travel_G3):
        total = light(sensors_K3[0], travel_3) + 4 * light(sensors_K3[1], travel_3)
        amount, of_cascade = 2.5 / total, 0.0
        expected = -amount * total
        for place_3, time in zip(position_P3, time_P.tolist(), strict=True):
            distance = (place_3 - points_BM4[0, 0, :3]).norm().view(1)
            residual = time - 10 - distance * medium.group_index / 0.299792458
            density = math.exp(ln_density(ln_density_table(JITTER_NS, medium), distance, residual, medium)[0, 0])
            rate = amount * light(place_3, travel_3) * density
            expected += math.log(rate + 5e-7)
            of_cascade += rate / (rate + 5e-7)
        assert float(amount_BMG[0, 0, direction]) == pytest.approx(amount, rel=1e-4)
        assert float(ln_BMG[0, 0, direction]) == pytest.approx(expected, abs=1e-3)
        if direction == int(ln_BMG.argmax()):
            assert float(light_B[0]) == pytest.approx(max(of_cascade, 1.0), rel=1e-4)


def test_cascades_point_to_their_source_as_well_as_they_say(simulated: SimulatedEvents, posteriors: np.ndarray) -> None:
    mean_E3, source_E3 = posteriors[:, :3].astype(np.float64), -simulated.truth.travel_E3
    unit_E3, length_E = unit_and_norm(mean_E3)
    angle_E = angles_rad(unit_E3, source_E3)
    assert np.degrees(angle_E.mean()) < 42  # chance: 90; a fit of a track: 64
    assert np.cos(angle_E).mean() == pytest.approx(length_E.mean(), abs=0.15)
    sure_E = length_E > np.median(length_E)
    assert angle_E[sure_E].mean() < angle_E[~sure_E].mean()
    # 0.005 photo-electrons a GeV.
    ratio_E = posteriors[:, 3] - np.log(0.005 * simulated.truth.energy_gev_E)
    assert abs(np.median(ratio_E)) < 0.3


def test_sensors_that_saw_nothing_count(
    simulated: SimulatedEvents, posteriors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The further ones, too: with the nearest 32 alone directions are less well known."""
    monkeypatch.setattr(cascades, "_STRATA", ((8, 1),))
    all_of_them, nearest = (
        np.cos(angles_rad(unit_and_norm(found[:, :3])[0], -simulated.truth.travel_E3)).mean()
        for found in (posteriors, fitted(simulated)[:, CASCADE])
    )
    assert nearest < all_of_them - 0.05


def test_an_event_has_the_fits_that_it_has_alone_and_in_chunks_and_elsewhere(
    simulated: SimulatedEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = simulated.take(np.arange(4))
    together = fitted(some)
    alone = np.concatenate([fitted(some.take(np.array([number]))) for number in range(4)])
    assert np.array_equal(alone[:, CASCADE], together[:, CASCADE])
    shifted = fitted(some, 64.0)[:, CASCADE]
    monkeypatch.setattr(classical, "_CHUNK_PULSES", 2 * int(some.counts_E.max()))
    for found in (alone, fitted(some)):
        assert np.allclose(found, together, rtol=1e-3, atol=0.05)
    assert np.median(np.abs(shifted - together[:, CASCADE])) < 0.05


def test_events_that_tell_little_or_much_have_finite_posteriors() -> None:
    def posterior(number: int, geometry: Geometry = GEOMETRY) -> Tensor:
        place_P3 = torch.tensor(GEOMETRY.position_S3[700]).repeat(number, 1)
        return cascade_posteriors(clean_event(place_P3, torch.zeros(number), geometry), torch.zeros(1, 4))

    assert torch.equal(posterior(0), torch.zeros(1, 5))
    for number in (1, 9, MOST_PULSES + 1, 5000):
        assert torch.isfinite(posterior(number)).all()
        assert posterior(number)[0, :3].norm() < 1
    assert torch.isfinite(posterior(2, Geometry(GEOMETRY.position_S3[:3]))).all()
