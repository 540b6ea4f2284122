"""Simulated events and data sets, beside the toy detector's formulas for one event at a time.

Metres, nanoseconds, GeV. Constants are written out, so that a wrong one in the simulator shows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from scipy import stats

from common.errors import BadInputError
from workloads.direction import simulator
from workloads.direction.columns import CASCADE, CLASSICAL_FITS, TRACK
from workloads.direction.geometry import GEOMETRY_FILE, icecube_geometry
from workloads.direction.simulator import (
    NATURAL,
    EndlessEvents,
    EventsPlan,
    SimulatedArray,
    SimulatedEvents,
    Truth,
    draw_truth,
    expected_light,
    file_rows,
    joined,
    write_dataset,
    write_file,
)

C = 0.299792458
PHASE, GROUP = 1.3195, 1.35634
THETA = math.acos(1 / PHASE)
DELAY_SCALE = 1 / (1 / 557 + C / (GROUP * 98))

Array = npt.NDArray[np.float64]


def coincident(sensor: npt.NDArray[np.int64], time: Array) -> npt.NDArray[np.bool_]:
    """True for pulses with another within 1 µs in another sensor of the string, at most two places away."""
    string, place = sensor // 60, sensor % 60
    away = np.abs(place[:, None] - place)
    near = (string[:, None] == string) & (away > 0) & (away <= 2) & (np.abs(time[:, None] - time) < 1000)
    return np.asarray(near.any(axis=1), np.bool_)


def cascade_light(offset_S3: Array, travel: Array, energy: float, is_track: bool) -> Array:
    """Expected photo-electrons of a cascade, alone or at the middle of a track, by position from the vertex."""
    distance_S = np.linalg.norm(offset_S3, axis=1)
    cos_S = offset_S3 @ travel / np.maximum(distance_S, 0.1)
    amount = 0.25 * energy / 50 * (0.3 if is_track else 1.0)
    angle_S = 0.15 + np.exp(-3 * np.abs(cos_S - 1 / PHASE))
    light_S: Array = amount * np.exp(-distance_S / 98) / (1 + distance_S / 3) ** 1.5 * angle_S
    return np.minimum(light_S, 400)


def track_light(offset_S3: Array, travel: Array, energy: float) -> Array:
    """Expected photo-electrons of a track, whose middle is the vertex."""
    emitted_S, path_S = emission(offset_S3, travel)
    amount_S = 6 * (1 + energy / 5e4) * np.exp(-path_S / 98) / (1 + path_S / 8)
    return np.where(np.abs(emitted_S) < min(4 * energy, 1500.0) / 2, np.minimum(amount_S, 400), 0.0)


def emission(offset_S3: Array, travel: Array) -> tuple[Array, Array]:
    """Place on the track, from the vertex on, whose direct light arrives, and the path of that light."""
    along_S = offset_S3 @ travel
    across_S = np.linalg.norm(offset_S3 - along_S[:, None] * travel, axis=1)
    return along_S - across_S / math.tan(THETA), across_S / math.sin(THETA)


ICECUBE = icecube_geometry()
ARRAY = SimulatedArray(ICECUBE, (-450.0, 450.0))
POSITION_S3 = ICECUBE.position_S3.astype(np.float64)


def drawn(num_events: int, seed: int = 0) -> SimulatedEvents:
    return EndlessEvents(NATURAL, ARRAY, np.random.default_rng(seed)).take(num_events)


def test_truth_is_isotropic_and_uniform_in_the_logarithm_of_energy() -> None:
    truth = draw_truth(NATURAL, 20_000, np.random.default_rng(0), ARRAY)

    assert stats.kstest(np.cos(truth.zenith_E), "uniform", (-1, 2)).pvalue > 0.01
    assert stats.kstest(truth.azimuth_E, "uniform", (0, 2 * np.pi)).pvalue > 0.01
    assert stats.kstest(np.log10(truth.energy_gev_E), "uniform", (2, 3)).pvalue > 0.01
    assert stats.kstest(truth.vertex_E3.reshape(-1), "uniform", (-450, 900)).pvalue > 0.01
    assert stats.binomtest(int(truth.is_track_E.sum()), 20_000, 0.5).pvalue > 0.01


@pytest.mark.parametrize("num_pulses", [0, 1, 300, 3000])
def test_coincidences_are_those_of_all_pairs(num_pulses: int) -> None:
    rng = np.random.default_rng(num_pulses)
    sensor_P = rng.integers(0, 300, num_pulses)
    time_P = np.round(rng.uniform(0, 20_000, num_pulses))
    order_P, clean_P = simulator._coincidences(sensor_P // 60 * 64 + sensor_P % 60, time_P)

    assert np.array_equal(order_P, np.lexsort((time_P, sensor_P)))
    assert np.array_equal(clean_P, coincident(sensor_P, time_P)[order_P])


def test_recorded_events_have_eight_clean_pulses_the_first_at_9800_ns() -> None:
    events = drawn(300)
    bounds = np.cumsum(events.counts_E)[:-1]
    for time, auxiliary in zip(np.split(events.time_ns_P, bounds), np.split(events.auxiliary_P, bounds), strict=True):
        assert (~auxiliary).sum() >= 8
        assert time[~auxiliary].min() == 9800.0
    assert events.time_ns_P.min() > 5000
    assert events.time_ns_P.max() < 22000
    assert np.array_equal(events.time_ns_P, np.rint(events.time_ns_P))
    assert events.charge_pe_P.min() >= np.float32(0.05)


def test_the_same_events_come_however_many_are_taken_at_once() -> None:
    source = EndlessEvents(NATURAL, ARRAY, np.random.default_rng(3))
    pieces, together = joined([source.take(number) for number in (1, 70, 29)]), drawn(100, seed=3)

    assert np.array_equal(pieces.counts_E, together.counts_E)
    assert np.array_equal(pieces.time_ns_P, together.time_ns_P)
    assert np.array_equal(pieces.truth.zenith_E, together.truth.zenith_E)


def natural_truth(num_events: int, seed: int = 0) -> Truth:
    return draw_truth(NATURAL, num_events, np.random.default_rng(seed), ARRAY)


def test_every_sensor_gets_the_light_of_the_formulas() -> None:
    events = natural_truth(20)
    track_TS, track_event_T, cascade_ES = expected_light(events, ICECUBE)

    assert track_event_T.tolist() == np.flatnonzero(events.is_track_E).tolist()
    assert 5 < len(track_TS) < 15
    for event in range(20):
        seen_from = POSITION_S3 - events.vertex_E3[event], events.travel_E3[event]
        expected_S = cascade_light(*seen_from, events.energy_gev_E[event], bool(events.is_track_E[event]))
        np.testing.assert_allclose(cascade_ES[event], expected_S, rtol=0.01, atol=1e-7)
    for row, event in enumerate(track_event_T):
        seen_from = POSITION_S3 - events.vertex_E3[event], events.travel_E3[event]
        expected_S = track_light(*seen_from, events.energy_gev_E[event])
        wrong_S = ~np.isclose(track_TS[row], expected_S, rtol=0.01, atol=1e-7)
        # A sensor at the very end of the cone is in the light or not by the last digit.
        assert wrong_S.sum() <= 2


def test_whole_events_have_the_pulses_of_the_formulas_and_noise() -> None:
    """A track and a cascade, each of them 400 times: pulses of each sensor, their times, and dark noise."""
    drawn_E = natural_truth(20, seed=2)
    chosen = [int(np.argmax(drawn_E.is_track_E)), int(np.argmin(drawn_E.is_track_E))]
    truth = drawn_E.take(np.repeat(chosen, 400))
    event_P, sensor_P, time_P = simulator._pulses(truth, ICECUBE, np.random.default_rng(0))

    for which, first in enumerate((0, 400)):
        of_kind_P = (event_P >= first) & (event_P < first + 400)
        energy, is_track = truth.energy_gev_E[first], which == 0
        offset_S3, travel = POSITION_S3 - truth.vertex_E3[first], truth.travel_E3[first]
        track_S = track_light(offset_S3, travel, energy) if is_track else np.zeros(len(POSITION_S3))
        light_S = track_S + cascade_light(offset_S3, travel, energy, is_track)
        expected_S = 400 * (light_S + 500e-9 * 6000)  # noise of 500 Hz for 6 µs
        counts_S = np.bincount(sensor_P[of_kind_P], minlength=len(POSITION_S3))
        pull_S = (counts_S - expected_S) / np.sqrt(expected_S)
        assert abs(pull_S.mean()) < 0.1
        assert pull_S.std() == pytest.approx(1, abs=0.1)
        assert (pull_S**2)[light_S > 1e-2].mean() == pytest.approx(1, abs=0.4)
        # Times in the sensor where the track, or the cascade, shines alone.
        brightest = int(np.argmax(track_S - 1e3 * (light_S - track_S) if is_track else light_S))
        emitted_m, path_m = emission(offset_S3[brightest : brightest + 1], travel)
        if not is_track:
            emitted_m, path_m = 0.0, np.linalg.norm(offset_S3[[brightest]], axis=1)
        random = np.random.default_rng(1)
        delay = random.gamma(max(path_m[0] / 33.3, 0.02), DELAY_SCALE, 20_000) + random.normal(0, 3, 20_000)
        found = time_P[of_kind_P & (sensor_P == brightest)]
        assert len(found) > 20
        assert stats.ks_2samp(found, emitted_m / C + path_m * GROUP / C + delay).pvalue > 0.01
        dark = time_P[of_kind_P & np.isin(sensor_P, np.flatnonzero(light_S < 1e-6))]
        assert stats.kstest(dark, "uniform", (-2000, 6000)).pvalue > 0.01


def test_rows_hold_the_simulated_events(tmp_path: Path) -> None:
    plan = EventsPlan(20, 1, seed=1, num_cascades=10)
    write_dataset(tmp_path, plan)
    table = pq.read_table(tmp_path / "events_00000.parquet")
    (rows,) = file_rows(plan, 0)
    pulses = table["pulses"].combine_chunks()

    assert table["event_id"].to_pylist() == rows.event_id_E.tolist()
    assert table["enriched"].to_pylist() == rows.added_E.tolist()
    assert table["topology"].to_pylist() == [TRACK if one else CASCADE for one in rows.events.truth.is_track_E]
    for name, expected in (("azimuth", "azimuth_E"), ("zenith", "zenith_E"), ("true_energy", "energy_gev_E")):
        assert np.array_equal(table[name].to_numpy(), getattr(rows.events.truth, expected).astype(np.float32))
    assert np.array_equal(np.diff(pulses.offsets.to_numpy()), rows.events.counts_E)
    names = ("sensor_id", "time_ns", "charge_pe", "is_auxiliary")
    for name, expected in zip(names, ("sensor_P", "time_ns_P", "charge_pe_P", "auxiliary_P"), strict=True):
        assert np.array_equal(pulses.values.field(name).to_numpy(zero_copy_only=False), getattr(rows.events, expected))
    assert table["classical_fits"].to_pylist() == [[0.0] * len(CLASSICAL_FITS)] * 30


def test_the_same_seed_gives_the_same_bytes_also_of_a_file_made_alone_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        write_dataset(tmp_path / name, EventsPlan(61, 3, seed, num_cascades=7))
    (tmp_path / "alone").mkdir()
    write_file(tmp_path / "alone" / "events_00001.parquet", EventsPlan(61, 3, 3, num_cascades=7), 1)
    one, two, other, alone = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "two", "other", "alone")
    )
    assert one == two
    assert alone.items() <= one.items()
    assert set(one.values()) & set(other.values()) == {one[GEOMETRY_FILE]}


PLAN = EventsPlan(30, 2, seed=1)


def test_a_file_has_the_natural_events_that_it_has_without_others() -> None:
    (natural,), (mixed,) = file_rows(PLAN, 0), file_rows(replace(PLAN, num_cascades=20), 0)
    kept = mixed.events.take(np.flatnonzero(~mixed.added_E))

    assert (~mixed.added_E).sum() == len(natural) == 15
    assert np.array_equal(kept.truth.zenith_E, natural.events.truth.zenith_E)
    for name in ("counts_E", "time_ns_P", "sensor_P"):
        assert np.array_equal(getattr(kept, name), getattr(natural.events, name)), name


def test_event_ids_differ_between_files_and_seeds_and_fit_a_float64() -> None:
    ids = [
        rows.event_id_E
        for seed in (0, 1, 2**16 - 1)
        for file_index in (0, 1)
        for rows in file_rows(EventsPlan(10, 2, seed=seed, array="hex"), file_index)
    ]
    flat = np.concatenate(ids)

    assert flat.dtype == np.int64
    assert len(set(flat.tolist())) == 30
    assert flat.min() >= 0
    assert flat.max() < 2**53
    assert all(np.all(np.diff(of_file) == 1) for of_file in ids)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_files": 0}, "files = 0"),
        ({"num_events": 1}, "every file needs at least one event"),
        ({"seed": -1}, "seed = -1"),
        ({"num_cascades": -1}, "cascades = -1: must not be negative"),
        ({"num_events": 70_000, "num_files": 70_000}, "files = 70000: event ids allow at most 65,536"),
        ({"num_events": 2**21, "num_cascades": 2**22}, "3,145,728 events a file: .* use more files"),
        ({"array": "km3net"}, "array = 'km3net': use one of icecube, hex, or the file of a table"),
        ({"medium": "air"}, "medium = 'air': use one of ice, water"),
    ],
)
def test_a_plan_that_cannot_be_met_is_refused_with_the_fix(fields: dict[str, int], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        replace(PLAN, **fields)  # type: ignore[arg-type]
