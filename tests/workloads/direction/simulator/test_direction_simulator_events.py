from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
import simple_detector as simple
from scipy import stats

from workloads.direction.geometry import icecube_geometry
from workloads.direction.simulator import events as simulator
from workloads.direction.simulator.events import (
    BRIGHT,
    CASCADES,
    NATURAL,
    EndlessEvents,
    SimulatedEvents,
    draw_truth,
    record,
)
from workloads.direction.simulator.light import Truth

POSITION_S3 = icecube_geometry().position_S3


def drawn(num_events: int, seed: int = 0, kind: simulator.EventKind = NATURAL) -> SimulatedEvents:
    return EndlessEvents(kind, POSITION_S3, np.random.default_rng(seed)).take(num_events)


def test_truth_is_isotropic_and_uniform_in_the_logarithm_of_energy() -> None:
    truth = draw_truth(NATURAL, 20_000, np.random.default_rng(0))

    assert stats.kstest(np.cos(truth.zenith_E), "uniform", (-1, 2)).pvalue > 0.01
    assert stats.kstest(truth.azimuth_E, "uniform", (0, 2 * np.pi)).pvalue > 0.01
    assert stats.kstest(np.log10(truth.energy_gev_E), "uniform", (2, 3)).pvalue > 0.01
    assert stats.kstest(truth.vertex_E3.reshape(-1), "uniform", (-450, 900)).pvalue > 0.01
    assert stats.binomtest(int(truth.is_track_E.sum()), 20_000, 0.5).pvalue > 0.01


@pytest.mark.parametrize(("path_m", "shape"), [(66.6, 2.0), (333.0, 10.0), (0.0, 0.02)])
def test_delays_follow_pandel_with_the_clocks_jitter(path_m: float, shape: float) -> None:
    rng = np.random.default_rng(0)
    delay = simulator._delays_ns(np.full(20_000, path_m), rng)
    gamma = stats.gamma.rvs(shape, scale=simple.DELAY_SCALE, size=20_000, random_state=rng)

    assert stats.ks_2samp(delay, gamma + rng.normal(0, 3, 20_000)).pvalue > 0.01


def test_cells_are_hit_a_poisson_number_of_times() -> None:
    expected = np.array([[0.0, 0.5, 3.0], [10.0, 0.0, 0.001]], np.float32)
    rng = np.random.default_rng(0)
    counts = np.stack([np.bincount(simulator._draw_cells(expected, rng), minlength=6) for _ in range(4000)])

    np.testing.assert_allclose(counts.mean(0), expected.reshape(-1), atol=0.16)
    np.testing.assert_allclose(counts.var(0), expected.reshape(-1), rtol=0.1, atol=0.01)
    assert abs(np.corrcoef(counts[:, 2], counts[:, 3])[0, 1]) < 0.05
    assert simulator._draw_cells(np.zeros((0, 5), np.float32), rng).size == 0
    assert simulator._draw_cells(np.zeros((2, 5), np.float32), rng).size == 0


@pytest.mark.parametrize("num_pulses", [0, 1, 300, 3000])
def test_coincidences_are_those_of_all_pairs(num_pulses: int) -> None:
    rng = np.random.default_rng(num_pulses)
    sensor_P = rng.integers(0, 300, num_pulses)
    time_P = np.round(rng.uniform(0, 20_000, num_pulses))
    order_P, clean_P = simulator._coincidences(sensor_P // 60 * 64 + sensor_P % 60, time_P)

    assert np.array_equal(order_P, np.lexsort((time_P, sensor_P)))
    assert np.array_equal(clean_P, simple.coincident(sensor_P, time_P)[order_P])


def test_a_neighbouring_event_or_string_makes_no_coincidence() -> None:
    # Last sensors of string 0, first ones of string 1; and the last sensor of an event, the first one of the next.
    truth = replace_light(draw_truth(NATURAL, 2, np.random.default_rng(0)), 0.0)
    position_S3 = POSITION_S3[:120]
    pulses = np.array([0, 0, 0, 1]), np.array([59, 60, 119, 0]), np.array([0.0, 1.0, 5000.0, 5001.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "_pulses", lambda *_: pulses)
        patch.setattr(simulator, "TRIGGER_PULSES", 0)
        patch.setattr(simulator, "FIRST_CLEAN_NS", 9800.0)
        clean = record(truth, position_S3, np.random.default_rng(0)).auxiliary_P

    assert not (~clean).any()


def replace_light(truth: Truth, brightness: float) -> Truth:
    return replace(truth, brightness_E=np.full(len(truth), brightness))


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


def test_pulses_are_in_order_of_event_sensor_and_time() -> None:
    events = drawn(300)
    event_P = np.repeat(np.arange(300), events.counts_E)

    assert np.array_equal(np.lexsort((events.time_ns_P, events.sensor_P, event_P)), np.arange(len(events.time_ns_P)))


def test_the_same_events_come_however_many_are_taken_at_once() -> None:
    source = EndlessEvents(NATURAL, POSITION_S3, np.random.default_rng(3))
    pieces = [source.take(number) for number in (1, 70, 29)]
    together = drawn(100, seed=3)

    assert np.array_equal(np.concatenate([piece.counts_E for piece in pieces]), together.counts_E)
    assert np.array_equal(np.concatenate([piece.time_ns_P for piece in pieces]), together.time_ns_P)
    assert np.array_equal(np.concatenate([piece.truth.zenith_E for piece in pieces]), together.truth.zenith_E)


def test_added_cascades_are_cascades_above_10_tev() -> None:
    truth = drawn(200, kind=CASCADES).truth

    assert not truth.is_track_E.any()
    assert truth.energy_gev_E.min() >= 1e4
    assert truth.energy_gev_E.max() <= 1e5


def test_bright_events_have_thousands_of_pulses() -> None:
    counts_E = drawn(10, kind=BRIGHT).counts_E

    assert counts_E.min() > 3000
    assert 50_000 < counts_E.max() < 178_000


@dataclass(frozen=True)
class Observed:
    """Distributions of a sample of events."""

    pulses: npt.NDArray[np.float64]
    sensors: npt.NDArray[np.float64]
    clean: npt.NDArray[np.float64]
    residual: npt.NDArray[np.float64]
    charge: npt.NDArray[np.float64]
    log_energy: npt.NDArray[np.float64]
    is_track: npt.NDArray[np.float64]
    alone: npt.NDArray[np.float64]
    angle: npt.NDArray[np.float64]


def observed(events: list[simple.SimpleEvent]) -> Observed:
    """Distributions of one value an event, of residuals and charges of all pulses, of pulses in a sensor."""
    residuals = []
    for event in events:
        direct = simple.track_time if event.is_track else simple.cascade_time
        time, _ = direct(POSITION_S3[event.sensor].astype(np.float64) - event.vertex, -event.source)
        residuals.append(event.time - event.vertex_ns - time)
    of_sensors = [np.unique(event.sensor, return_counts=True)[1] for event in events]
    return Observed(
        pulses=np.array([len(event.time) for event in events], float),
        sensors=np.array([len(counts) for counts in of_sensors], float),
        clean=np.concatenate([event.clean for event in events]).astype(float),
        residual=np.concatenate(residuals),
        charge=np.concatenate([event.charge for event in events]),
        log_energy=np.log10([event.energy for event in events]),
        is_track=np.array([event.is_track for event in events], float),
        alone=(np.concatenate(of_sensors) == 1).astype(float),
        angle=np.array([line_fit_error_deg(event) for event in events]),
    )


def line_fit_error_deg(event: simple.SimpleEvent) -> float:
    """Error of LineFit: velocity by least squares of the positions of clean pulses against their times."""
    r = POSITION_S3[event.sensor[event.clean]].astype(np.float64)
    t = event.time[event.clean] - event.time[event.clean].mean()
    velocity = (t[:, None] * (r - r.mean(0))).sum(0)
    cosine = -velocity @ event.source / max(float(np.linalg.norm(velocity)), 1e-12)
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def as_simple(events: SimulatedEvents) -> list[simple.SimpleEvent]:
    bounds = np.cumsum(events.counts_E)[:-1]
    columns = (events.sensor_P.astype(np.int64), events.time_ns_P.astype(float), events.charge_pe_P.astype(float))
    parts = zip(*(np.split(column, bounds) for column in (*columns, ~events.auxiliary_P)), strict=True)
    truth = events.truth
    return [
        simple.SimpleEvent(
            *(-truth.travel_E3[i], float(truth.energy_gev_E[i]), bool(truth.is_track_E[i]), truth.vertex_E3[i]),
            *(float(events.vertex_ns_E[i]), *part),
        )
        for i, part in enumerate(parts)
    ]


@pytest.mark.slow
def test_events_are_distributed_as_those_of_the_formulas_one_by_one() -> None:
    num_events = 3000
    fast = observed(as_simple(drawn(num_events, seed=11)))
    slow = observed(simple.simple_events(num_events // 2, POSITION_S3.astype(np.float64), np.random.default_rng(12)))

    for name in ("pulses", "sensors", "residual", "charge", "log_energy", "angle"):
        assert stats.ks_2samp(getattr(fast, name), getattr(slow, name)).pvalue > 0.005, name
    # Pulses of an event are alike, so these shares scatter more than independent ones: four binomial sigma and a bit.
    for name, tolerance in (("clean", 0.01), ("alone", 0.005), ("is_track", 0.03)):
        assert getattr(fast, name).mean() == pytest.approx(getattr(slow, name).mean(), abs=tolerance), name


@pytest.mark.slow
def test_line_fit_errs_as_line_fits_of_this_detector_do() -> None:
    found = observed(as_simple(drawn(4000, seed=1)))
    track = found.is_track > 0

    assert found.angle.mean() == pytest.approx(14.5, abs=1.0)
    assert np.median(found.angle) == pytest.approx(4.3, abs=0.3)
    assert np.median(found.angle[track]) == pytest.approx(3.6, abs=0.2)
    assert np.median(found.angle[~track]) == pytest.approx(58.0, abs=5.0)
    assert 1 - found.clean.mean() == pytest.approx(0.51, abs=0.01)
    assert found.alone.mean() == pytest.approx(0.86, abs=0.01)
