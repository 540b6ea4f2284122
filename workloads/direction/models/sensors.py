"""Sensors of an event as the networks see them: merged pulses, chosen sensors, a summary of the event.

Shape suffixes: E events, T sensors, P pulses, A sensors without a clean pulse, C others, N pairs of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from workloads.base.segments import Segments, pool, segment_sum, sort_within_events, spread
from workloads.direction.models.events import EventInput

CAUSAL_CUT = 1.5
"""Largest distance in space-time of an auxiliary sensor from a clean one: 1 is 150 m, or 1,000 ns."""
_CAUSAL_M, _CAUSAL_NS = 150.0, 1000.0
_PAIRS_AT_ONCE = 1 << 19
"""Pairs of sensors whose distance is computed at once: an event of thousands of sensors has millions."""


@dataclass(frozen=True)
class SensorSet:
    """Chosen sensors of events, with all pulses of a sensor merged. Times are relative to the event's reference."""

    chosen_T: Tensor
    """(T,) int64: their places among all sensors of the events."""
    position_T3: Tensor
    """m."""
    time_T1: Tensor
    """First clean pulse, else first pulse, ns."""
    log10_charge_T1: Tensor
    """Sum over the pulses, photo-electrons."""
    auxiliary_T1: Tensor
    """1 without a clean pulse, else 0."""
    median_T1: Tensor
    """Median (lower) of its pulses after `time`, ns."""
    last_T1: Tensor
    """Last pulse after `time`, ns."""
    mean_T1: Tensor
    """Mean of its pulses after `time`, ns."""
    ln_pulses_T1: Tensor
    segments: Segments
    """Assignment of the sensors to the events."""
    summary_E8: Tensor
    """Summary of each event, of all its sensors; see `_summary`."""


@dataclass(frozen=True)
class _Merged:
    """All sensors of events."""

    time_T: Tensor
    charge_T: Tensor
    clean_T: Tensor
    """(T,) bool: with a clean pulse; all sensors of an event without any."""
    auxiliary_T: Tensor
    median_T: Tensor
    last_T: Tensor
    mean_T: Tensor


@torch.no_grad()
def sensor_set(events: EventInput, max_sensors: int) -> SensorSet:
    """Return at most ``max_sensors`` sensors of each event: with clean pulses by charge, then others by their distance.

    Other sensors count if they are near a clean one in space and time, as light of the same particles is.
    """
    merged, sensors = _merged(events), events.sensors
    score_T = torch.where(merged.clean_T, -1 - merged.charge_T.log1p(), _causal_distances(events, merged))
    kept_T = score_T < CAUSAL_CUT
    counts_E = segment_sum(kept_T.float(), sensors).long()
    if len(counts_E) and int(counts_E.max()) > max_sensors:
        kept_T &= _ranks(score_T, sensors) < max_sensors
        counts_E = counts_E.clamp_max(max_sensors)
    (chosen,) = kept_T.nonzero(as_tuple=True)
    columns = (
        *(merged.time_T, merged.charge_T.log10(), merged.auxiliary_T, merged.median_T, merged.last_T, merged.mean_T),
        events.pulses.counts_E.log(),
    )
    time, charge, auxiliary, median, last, mean, ln_pulses = torch.stack(columns, 1).index_select(0, chosen).split(1, 1)
    return SensorSet(
        chosen_T=chosen,
        position_T3=events.position_T3.index_select(0, chosen),
        time_T1=time,
        log10_charge_T1=charge,
        auxiliary_T1=auxiliary,
        median_T1=median - time,
        last_T1=last - time,
        mean_T1=mean - time,
        ln_pulses_T1=ln_pulses,
        segments=Segments.from_counts(counts_E, len(chosen)),
        summary_E8=_summary(events, merged),
    )


def _merged(events: EventInput) -> _Merged:
    """Sensors with their pulses merged."""
    pulses, sensors, num_pulses = events.pulses, events.sensors, len(events.time_P)
    clean_P = ~events.auxiliary_P
    if num_pulses == 0:
        none = events.time_P
        return _Merged(none, none, clean_P, none, none, none, none)
    place_P = torch.arange(num_pulses, device=clean_P.device)
    next_clean_P = torch.where(clean_P, place_P, num_pulses).flip(0).cummin(0).values.flip(0)
    first_clean_T = next_clean_P[pulses.starts_E]
    end_T = pulses.starts_E + pulses.counts_E
    hit_T = first_clean_T < end_T
    charge_T, time_T = segment_sum(torch.stack([10**events.log10_charge_P, events.time_P], 1), pulses).unbind(1)
    has_clean_E = segment_sum(hit_T.float(), sensors) > 0
    return _Merged(
        time_T=events.time_P[torch.where(hit_T, first_clean_T, pulses.starts_E)],
        charge_T=charge_T,
        clean_T=hit_T | ~has_clean_E[sensors.event_P],
        auxiliary_T=(~hit_T).float(),
        median_T=events.time_P[pulses.starts_E + (pulses.counts_E - 1) // 2],
        last_T=events.time_P[end_T - 1],
        mean_T=time_T / pulses.counts_E,
    )


def _ranks(score_T: Tensor, sensors: Segments) -> Tensor:
    """Number of each sensor in its event, in ascending order of the score. -> (T,) int64."""
    order_T = sort_within_events(score_T, sensors)
    number_T = torch.arange(len(order_T), device=order_T.device) - sensors.starts_E[sensors.event_P]
    return torch.empty_like(order_T).scatter_(0, order_T, number_T)


def _causal_distances(events: EventInput, merged: _Merged) -> Tensor:
    """Distance of each sensor without a clean pulse from the nearest with one; 0 for those with one. -> (T,)."""
    places = [*(events.position_T3 / _CAUSAL_M).unbind(1), merged.time_T / _CAUSAL_NS]
    (auxiliary_A,), (clean_C,) = (of.nonzero(as_tuple=True) for of in (~merged.clean_T, merged.clean_T))
    counts_E = segment_sum(merged.clean_T.float(), events.sensors).long()
    event_A = events.sensors.event_P[auxiliary_A]
    counts_A, starts_A = counts_E[event_A], (counts_E.cumsum(0) - counts_E)[event_A]
    of_auxiliary, of_clean = ([column_T[some] for column_T in places] for some in (auxiliary_A, clean_C))
    found = [
        _nearest([column_A[some] for column_A in of_auxiliary], of_clean, counts_A[some], starts_A[some], num)
        for some, num in _blocks(counts_A)
    ]
    return torch.zeros_like(merged.time_T).index_copy_(0, auxiliary_A, torch.cat(found))


def _blocks(counts_A: Tensor) -> Iterator[tuple[slice, int]]:
    """Consecutive sensors with at most _PAIRS_AT_ONCE pairs (or one sensor), and their number of pairs."""
    ends = counts_A.cumsum(0)
    num = int(ends[-1]) if len(ends) else 0
    if num <= _PAIRS_AT_ONCE:
        yield slice(None), num
        return
    first = done = 0
    while first < len(ends):
        last = max(int(torch.searchsorted(ends, done + _PAIRS_AT_ONCE, right=True)), first + 1)
        end = int(ends[last - 1])
        yield slice(first, last), end - done
        first, done = last, end


def _nearest(
    of_auxiliary: list[Tensor], of_clean: list[Tensor], counts_A: Tensor, starts_A: Tensor, num_pairs: int
) -> Tensor:
    """Distance of each auxiliary sensor from the nearest of its event's clean ones. -> (A,).

    Coordinates are lists of columns, each (A,) or (C,): twice as fast as (A, 4) and (C, 4). Sensor a has
    ``counts_A`` clean ones, the first of which is ``starts_A``.
    """
    pairs = Segments.from_counts(counts_A, num_pairs)
    clean_N = torch.arange(num_pairs, device=counts_A.device) + (starts_A - pairs.starts_E).index_select(
        0, pairs.event_P
    )
    square_N = torch.zeros(num_pairs, device=counts_A.device)
    for column_A, column_C in zip(of_auxiliary, of_clean, strict=True):
        apart_N = column_A.index_select(0, pairs.event_P) - column_C.index_select(0, clean_N)
        square_N.addcmul_(apart_N, apart_N)
    nearest_A: Tensor = torch.segment_reduce(square_N, "min", lengths=counts_A, unsafe=True)
    return nearest_A.sqrt()


def _summary(events: EventInput, merged: _Merged) -> Tensor:
    """Summary of each event, finite also for an empty one. -> (E, 8).

    Logarithms of the numbers of sensors and of clean ones, and of the charge; logarithms of the three eigenvalues of
    the covariance of the clean sensors' positions, ascending; spread of their times; share of the brightest sensor.
    """
    sensors, clean_T1 = events.sensors, merged.clean_T.float().unsqueeze(1)
    charge_T1 = merged.charge_T.unsqueeze(1)
    place_T4 = torch.cat([events.position_T3, merged.time_T.unsqueeze(1)], 1)
    sums_E6 = segment_sum(torch.cat([clean_T1, place_T4 * clean_T1, charge_T1], 1), sensors)
    num_clean_E1, charge_E1 = sums_E6[:, :1].clamp_min(1), sums_E6[:, 5:]
    apart_T4 = (place_T4 - spread(sums_E6[:, 1:5] / num_clean_E1, sensors)) * clean_T1
    x_T, y_T, z_T, _ = apart_T4.unbind(1)
    products_T7 = torch.cat([apart_T4.square(), torch.stack([x_T * y_T, y_T * z_T, z_T * x_T], 1)], 1)
    products_E7 = segment_sum(products_T7, sensors) / num_clean_E1
    brightest_E1 = pool(charge_T1, sensors, ("max",))
    eigenvalues_E3 = eigenvalues(products_E7[:, :3], products_E7[:, 4:])
    return torch.cat(
        [
            sensors.counts_E.clamp_min(1).log().unsqueeze(1),
            num_clean_E1.log(),
            charge_E1.clamp_min(1e-2).log(),
            (eigenvalues_E3.clamp_min(0) + 1).log() / 4 - 2,
            products_E7[:, 3:4].sqrt() / 500,
            (brightest_E1 / charge_E1.clamp_min(1e-2)).clamp_max(1),
        ],
        1,
    ) * (sensors.counts_E > 0).unsqueeze(1)


def eigenvalues(diagonal_E3: Tensor, beside_E3: Tensor) -> Tensor:
    """Eigenvalues of symmetric 3 × 3 matrices, ascending; ``beside``: elements xy, yz, zx. (E, 3), (E, 3) -> (E, 3).

    By trigonometry (Smith, Communications of the ACM 4, 168, 1961), in float64: torch's own waits for the device.
    """
    diagonal_E3, beside_E3 = diagonal_E3.double(), beside_E3.double()
    mean_E1 = diagonal_E3.mean(1, keepdim=True)
    a_E3 = diagonal_E3 - mean_E1
    scale_E1 = ((a_E3.square().sum(1, keepdim=True) + 2 * beside_E3.square().sum(1, keepdim=True)) / 6).sqrt()
    safe_E1 = scale_E1.clamp_min(1e-30)
    (x_E, y_E, z_E), (xy_E, yz_E, zx_E) = (a_E3 / safe_E1).unbind(1), (beside_E3 / safe_E1).unbind(1)
    half_determinant_E = (x_E * y_E * z_E + 2 * xy_E * yz_E * zx_E - x_E * yz_E**2 - y_E * zx_E**2 - z_E * xy_E**2) / 2
    angle_E1 = (half_determinant_E.clamp(-1, 1).acos() / 3).unsqueeze(1)
    largest_E1 = 2 * scale_E1 * angle_E1.cos()
    smallest_E1 = 2 * scale_E1 * (angle_E1 + 2 * math.pi / 3).cos()
    apart_E3 = torch.cat([smallest_E1, -largest_E1 - smallest_E1, largest_E1], 1)
    return (mean_E1 + apart_E3).float()
