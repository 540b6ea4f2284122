"""Other detectors than IceCube: their medium and size, events simulated in them, fits and features of these."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from direction_events import GEOMETRY, direction_microbatch, event_input
from direction_files import read_arrays
from test_direction_simulator import ICECUBE, coincident
from torch import Tensor, nn

from common.errors import BadInputError
from tests.workloads.direction.fake_predictor import task_of
from workloads.base.batch import Batch
from workloads.direction.columns import CLASSICAL_FITS, TRACK
from workloads.direction.geometry import GEOMETRY_FILE, ICE, MEDIA, WATER, Geometry, write_geometry
from workloads.direction.metrics import angles_rad
from workloads.direction.models.network import Detector
from workloads.direction.prediction import microbatch_of
from workloads.direction.seeds import run_seeds
from workloads.direction.simulator import NATURAL, EndlessEvents, EventsPlan, SimulatedArray, write_dataset

TABLES = Path(__file__).resolve().parents[2] / "data" / "geometries"


def test_networks_see_icecube_in_metres_and_every_other_detector_at_its_size() -> None:
    """Ten times as large and elsewhere, with light that goes ten times as far: the same input."""
    assert torch.equal(Detector(ICECUBE).seen_S3, torch.from_numpy(ICECUBE.position_S3))
    assert Detector(ICECUBE).scale == 1
    centre_3 = np.array([5000, -2500, 12500], np.float32)
    larger = Detector(Geometry(GEOMETRY.position_S3 * 10 + centre_3, ICE.scaled(10)))
    microbatch = direction_microbatch(5)
    columns = dict(microbatch.event_columns)
    factor_F = [10 if name.endswith(("_m", "_ns")) and name != "line_speed_m_ns" else 1 for name in CLASSICAL_FITS]
    axes = dict(zip(("_x_m", "_y_m", "_z_m"), centre_3.tolist(), strict=True))
    shift_F = torch.tensor([axes.get(name[-4:], 0) for name in CLASSICAL_FITS])
    columns["classical_fits"] = columns["classical_fits"] * torch.tensor(factor_F) + shift_F
    pulses_P2 = microbatch.particle_columns["pulses"] * torch.tensor([10, 1])
    particles = microbatch.particle_columns | {"pulses": pulses_P2}
    scaled = replace(microbatch, event_columns=columns, particle_columns=particles)

    expected, found = event_input(microbatch), event_input(scaled, larger)

    for name in ("position_T3", "time_P", "fits_EF"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-2)
    assert found.medium.absorption_m == pytest.approx(expected.medium.absorption_m)


def test_an_early_checkpoint_is_of_ice_and_seen_in_metres_also_when_it_is_saved_again() -> None:
    water = Detector(replace(GEOMETRY, medium=WATER))
    assert Detector.of(water.state_dict()).geometry.is_like(water.geometry)
    assert torch.equal(Detector.of(water.state_dict()).seen_S3, water.seen_S3)
    detector = Detector.of({"position_S3": water.position_S3})
    assert detector.geometry.medium == ICE
    assert torch.equal(Detector.of(detector.state_dict()).seen_S3, water.position_S3)


def test_clean_pulses_have_neighbours_on_strings_of_any_length_however_sensors_are_numbered() -> None:
    old_S = np.random.default_rng(0).permutation(len(ICECUBE))[:4000]
    kept = np.sort(old_S)
    string_K = kept // 60
    place_K = 60 * string_K + np.arange(4000) - np.searchsorted(string_K, string_K)
    place_S = place_K[np.searchsorted(kept, old_S)]
    array = SimulatedArray(Geometry(ICECUBE.position_S3[old_S]))
    events = EndlessEvents(NATURAL, array, np.random.default_rng(1)).take(50)
    for own in np.split(np.arange(len(events.sensor_P)), np.cumsum(events.counts_E)[:-1]):
        sensor, time = events.sensor_P[own].astype(np.int64), events.time_ns_P[own].astype(np.float64)
        assert np.array_equal(np.lexsort((time, sensor)), np.arange(len(own)))
        assert np.array_equal(~events.auxiliary_P[own], coincident(place_S[sensor], time))


def test_an_array_in_which_nothing_triggers_is_refused(tmp_path: Path) -> None:
    write_geometry(tmp_path / GEOMETRY_FILE, Geometry(np.array([[0, 0, 0], [9000, 0, 0]], np.float32)))
    plan = EventsPlan(3, 1, 0, array=str(tmp_path / GEOMETRY_FILE))
    with pytest.raises(BadInputError, match=r"none of 10,016 events has the 8 clean pulses .* in the 2 sensors"):
        write_dataset(tmp_path / "out", plan)


def test_the_table_tells_the_medium_unless_it_is_named(tmp_path: Path) -> None:
    write_geometry(tmp_path / GEOMETRY_FILE, replace(GEOMETRY, medium=WATER))
    plan = EventsPlan(3, 1, 0, array=str(tmp_path / GEOMETRY_FILE))
    assert plan.geometry.is_like(replace(GEOMETRY, medium=WATER))
    assert replace(plan, medium="ice").geometry.is_like(GEOMETRY)
    # Of 100 m of light in ice and in water: the Cherenkov angle, and the mean delay by scattering.
    assert np.degrees(np.arccos([ICE.cos_cherenkov, WATER.cos_cherenkov])) == pytest.approx([40.7, 42.2], abs=0.1)
    delays_ns = [100 / medium.scattering_m / medium.scattering_rate_per_ns for medium in (ICE, WATER)]
    assert delays_ns == pytest.approx([741, 98], rel=0.02)
    write_dataset(tmp_path / "out", plan)
    written = (tmp_path / "out" / GEOMETRY_FILE).read_text()
    assert written.startswith("sensor_id,x,y,z,medium\n0,-200.0,-200.0,-240.0,water")


INPUTS = re.compile(r"((light|trust|refinement)\.)?((pulse|sensor|event)_input(\.0)?|input)")
"""Layers that features enter."""
ARRAYS = [
    *(("cluster", "water", 5), ("flower_s", "water", 3), ("flower_l", "water", 3), ("flower_xl", "water", 3)),
    *(("triangle", "water", 25), ("triangle", "ice", 35), ("flower_s", "ice", 5), ("hexagon", "ice", 3)),
    ("icecube_upgrade", "ice", 15),
]


@pytest.mark.parametrize(("name", "medium", "most_deg"), ARRAYS)
def test_events_of_other_arrays_are_simulated_fitted_and_seen_with_features_of_about_1(
    tmp_path: Path, name: str, medium: str, most_deg: float
) -> None:
    """Also from one kilometre below the origin, and of a size from 100 m to 4 km."""
    plan = EventsPlan(40, 1, seed=3, array=str(TABLES / f"{name}.parquet"), medium=medium)
    write_dataset(tmp_path / "events", plan)
    run_seeds([tmp_path / "events" / "events_00000.parquet"], tmp_path / "seeds", None, 1, force=False)
    arrays = read_arrays(tmp_path / "seeds" / "events_00000.parquet")
    columns = arrays.event_columns
    is_track_E = columns["topology"][:, 0] == TRACK
    fit_E3 = columns["classical_fits"][:, CLASSICAL_FITS.index("track_x") :][:, :3].astype(np.float64)
    angle_E = np.degrees(angles_rad(fit_E3, columns["source_direction"].astype(np.float64)))
    assert np.median(angle_E[is_track_E]) < most_deg
    for model in ("sets", "transformer", "flat"):
        task = task_of(tmp_path / "seeds", model=model)
        assert task.detector.geometry.medium == MEDIA[medium]
        seen: list[Tensor] = []
        for layer, module in task.averaged.latest.named_modules():
            if INPUTS.fullmatch(layer) and isinstance(module, nn.Linear):
                module.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0].detach()))
        metrics = task.step(Batch((microbatch_of(arrays, torch.device("cpu")),)))
        assert all(value.isfinite() for value in metrics.values())
        assert metrics["skipped_updates"] == 0
        assert len(seen) >= {"sets": 4, "transformer": 5, "flat": 1}[model]
        for features in seen:
            assert features.isfinite().all()
            assert (features.abs() > 10).float().mean() < 0.02
            assert 0.1 < features.square().mean().sqrt() < 4
