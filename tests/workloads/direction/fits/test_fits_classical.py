"""Tests of all classical fits of events together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from common.errors import BadInputError
from tests.workloads.direction.fits.light_fronts import near_point, near_track, random_pulses, track_pulses
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.fits import classical
from workloads.direction.fits.classical import classical_fits, fits_of, plain_line_fits
from workloads.direction.geometry import hex_geometry
from workloads.direction.ice import LIGHT_SPEED_M_NS

GEOMETRY = hex_geometry()
Event = tuple[npt.NDArray[np.int16], npt.NDArray[np.float32]]


def fits(*events: Event, auxiliary: bool = False) -> list[dict[str, float]]:
    """Fits of events of clean pulses, by name."""
    found = classical_fits(*columns(*events, auxiliary=auxiliary), GEOMETRY)
    return [dict(zip(CLASSICAL_FITS, row.tolist(), strict=True)) for row in found]


def named(fits_E21: torch.Tensor) -> dict[str, float]:
    """Fits of one event, by name."""
    return dict(zip(CLASSICAL_FITS, fits_E21[0].tolist(), strict=True))


def columns(*events: Event, auxiliary: bool = False) -> tuple[npt.NDArray[np.generic], ...]:
    sensor_P, time_P = (np.concatenate(parts) for parts in zip(*events, strict=True))
    offsets_E1 = np.cumsum([0, *(len(sensor) for sensor, _ in events)])
    return sensor_P, time_P, np.ones_like(time_P), np.full(len(time_P), auxiliary), offsets_E1


def vector(found: dict[str, float], name: str, unit: str = "") -> npt.NDArray[np.float64]:
    return np.array([found[f"{name}_{axis}{unit}"] for axis in "xyz"])


def angle_deg(a_3: npt.NDArray[np.float64], b_3: npt.NDArray[np.float64]) -> float:
    return float(np.degrees(2 * np.arctan2(np.linalg.norm(a_3 - b_3), np.linalg.norm(a_3 + b_3))))


def some_tracks() -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    rng = np.random.default_rng(3)
    travel = rng.normal(size=(6, 3))
    return list(
        zip(travel / np.linalg.norm(travel, axis=1, keepdims=True), rng.uniform(-150, 150, (6, 3)), strict=True)
    )


def test_tracks_are_recovered_from_their_direct_light() -> None:
    for travel_3, point_3 in some_tracks():
        found = named(fits_of(near_track(torch.tensor(travel_3).float(), torch.tensor(point_3).float())))
        assert angle_deg(vector(found, "track"), -travel_3) < 0.4
        # The fitted point lies on the true track, at the time when the particle was there.
        apart_3 = vector(found, "track_at", "_m") - point_3
        along_m = apart_3 @ travel_3
        assert np.linalg.norm(apart_3 - along_m * travel_3) < 2
        assert found["track_ns"] == pytest.approx(along_m / LIGHT_SPEED_M_NS, abs=6)


def test_point_sources_are_recovered_from_their_direct_light() -> None:
    for truth_3 in np.random.default_rng(4).uniform(-300, 300, (6, 3)):
        found = named(fits_of(near_point(torch.tensor(truth_3).float())))
        assert np.linalg.norm(vector(found, "vertex", "_m") - truth_3) < 1.5
        assert found["vertex_ns"] == pytest.approx(0, abs=6)


def test_tracks_and_point_sources_are_told_apart_by_their_likelihoods() -> None:
    travel_3, point_3 = (torch.tensor(vector).float() for vector in some_tracks()[0])
    track, point = named(fits_of(near_track(travel_3, point_3))), named(fits_of(near_point(point_3)))
    assert track["track_ln_l"] > track["vertex_ln_l"] + 0.5
    assert point["vertex_ln_l"] > point["track_ln_l"] + 0.2


def test_the_line_points_to_the_source_along_the_track() -> None:
    travel_3, point_3 = some_tracks()[1]
    event = track_pulses(travel_3, point_3)
    (found,) = fits(event)
    assert angle_deg(vector(found, "line"), -travel_3) < 12
    assert 0.1 < found["line_speed_m_ns"] < 0.5
    assert angle_deg(plain_line_fits(*columns(event), GEOMETRY)[0], -travel_3) < 15


def test_events_that_tell_little_have_finite_fits() -> None:
    nothing = (np.zeros(0, np.int16), np.zeros(0, np.float32))
    one = (np.array([7], np.int16), np.array([1e4], np.float32))
    one_sensor = (np.full(9, 7, np.int16), np.linspace(0, 900, 9, dtype=np.float32))
    one_time = (np.arange(9, dtype=np.int16), np.full(9, 5e3, np.float32))
    for auxiliary in (False, True):
        found = fits(nothing, one, one_sensor, one_time, nothing, auxiliary=auxiliary)
        for values in found:
            assert np.isfinite(list(values.values())).all()
            assert np.linalg.norm(vector(values, "track")) == pytest.approx(1, abs=1e-5)
        assert found[0] == {name: float(name in ("line_z", "track_z")) for name in CLASSICAL_FITS}


def test_events_without_pulses_alone_have_fits() -> None:
    nothing = (np.zeros(0, np.int16), np.zeros(0, np.float32))
    upwards = {name: float(name in ("line_z", "track_z")) for name in CLASSICAL_FITS}
    assert fits(nothing, nothing) == [upwards, upwards]
    assert plain_line_fits(*columns(nothing), GEOMETRY).tolist() == [[0, 0, 1]]


def test_without_charge_the_fits_are_finite() -> None:
    sensor_P, time_P, charge_P, auxiliary_P, offsets_E1 = columns(track_pulses(*some_tracks()[0]))
    assert np.isfinite(classical_fits(sensor_P, time_P, 0 * charge_P, auxiliary_P, offsets_E1, GEOMETRY)).all()


def test_an_extreme_event_is_fitted() -> None:
    assert torch.isfinite(fits_of(random_pulses([178_000, 3], clean_share=0.4))).all()


def test_the_order_of_the_pulses_of_an_event_does_not_matter() -> None:
    sensor, time = track_pulses(*some_tracks()[2])
    order = np.random.default_rng(0).permutation(len(time))
    found, permuted = fits((sensor, time), (sensor[order], time[order]))
    assert np.allclose(list(found.values()), list(permuted.values()), rtol=1e-2, atol=0.1)
    assert angle_deg(vector(found, "track"), vector(permuted, "track")) < 0.05


def test_the_fits_of_an_event_do_not_depend_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [track_pulses(*truth, most=10 + 3 * n) for n, truth in enumerate(some_tracks())]
    together = classical_fits(*columns(*events), GEOMETRY)
    alone = np.concatenate([classical_fits(*columns(event), GEOMETRY) for event in events])
    monkeypatch.setattr(classical, "_CHUNK_PULSES", 100)
    in_chunks = classical_fits(*columns(*events), GEOMETRY)
    for found in (alone, in_chunks):
        assert np.allclose(found, together, rtol=1e-3, atol=0.05)


def test_a_constant_time_changes_nothing() -> None:
    sensor, time = track_pulses(*some_tracks()[3])
    found, later = fits((sensor, time), (sensor, time + np.float32(2**13)))
    assert np.allclose(list(found.values()), list(later.values()), rtol=1e-2, atol=0.1)


@pytest.mark.parametrize("sensor", [-1, len(GEOMETRY)])
def test_a_sensor_that_the_geometry_lacks_is_named(sensor: int) -> None:
    with pytest.raises(BadInputError, match=f"sensor {sensor}, but the geometry has the sensors 0 to 5459"):
        fits((np.array([3, sensor, 4], np.int16), np.zeros(3, np.float32)))
