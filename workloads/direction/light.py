"""Light that the classical fits use: an event's pulses, and the density of their times.

The density of a pulse's time residual is the Pandel function (Ahrens et al., AMANDA, astro-ph/0407044, eq. 14-16) of
light that travelled ``distance``: a Gamma distribution of the delay behind light that doesn't scatter, of shape
distance / λ and rate 1 / τ + c / (n λ_a), convolved with a Gaussian, the jitter of the sensors' times, and mixed with a
flat part, the noise.

Of the pulses the fits of tracks and point sources use, padded, the clean ones, and auxiliary ones that may be of the
same light.

Times are relative to the event's reference time, which has one definition for these fits and for the models.

E events, P pulses; of a batch: B events, L places for pulses, a multiple of 8 that depends on the event alone, so that
an event's fits don't depend on the others; N pulses in any shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from common.files.rows import offsets_of
from workloads.base.batch import runs_of_events
from workloads.base.segments import Segments, segment_sum, sort_within_events, spread
from workloads.direction.geometry import Geometry, Medium

# ---- Light of tracks and cascades, as the simulator makes it. Amounts are chosen, not measured.

TRACK_LIGHT_PE = 6.0
"""Photo-electrons in a sensor next to a track of low energy."""
TRACK_NEAR_M = 8.0
TRACK_LOSS_GEV = 5e4
"""Energy at which the light of losses along a track equals its own."""
TRACK_GEV_PER_M, LONGEST_TRACK_M = 0.25, 1500.0
TRACKS_CASCADE = 0.3
"""Light of the cascade at the middle of a track, relative to that of a cascade of the same energy."""
MOST_PE = 400.0
"""Photo-electrons of one sensor, on average: more saturate it."""
CASCADE_LIGHT_PE_PER_GEV = 0.005
CASCADE_NEAR_M = 3.0
CASCADE_ISOTROPIC = 0.15
"""Light in every direction, relative to that at the Cherenkov angle."""
CASCADE_WIDTH = 3.0
JITTER_NS = 3.0
"""Resolution of a sensor's clock."""
NOISE_PER_NS = 500e-9
"""Noise of a sensor: 500 Hz."""


def ln_shower_light(distance: Tensor, medium: Medium) -> Tensor:
    """Return ln of the light of a shower at these distances, m, per photo-electron of its amount. (N) -> (N)."""
    return distance / -medium.absorption_m - 1.5 * (distance / CASCADE_NEAR_M).log1p_()


def shower_light_by_angle(cosine: Tensor, medium: Medium) -> Tensor:
    """Return the light of a shower by the cosine of the angle to its direction, which is overwritten. (N) -> (N)."""
    return cosine.sub_(medium.cos_cherenkov).abs_().mul_(-CASCADE_WIDTH).exp_() + CASCADE_ISOTROPIC


# ---- Reference time of an event.


def reference_times(time_P: Tensor, clean_P: Tensor, offsets_E1: Tensor) -> Tensor:
    """Median time of each event's clean pulses; of all its pulses if none is clean; 0 if it has none. -> (E,).

    Of an even number the lower of the two in the middle, so that the result is the time of a pulse.
    ``time_P``: float, ns; ``clean_P``: bool, not auxiliary; ``offsets_E1``: int64, event e owns the pulses
    offsets[e] to offsets[e + 1], in any order. No synchronisation with the device.
    """
    segments = Segments.from_offsets(offsets_E1, time_P.shape[0])
    return segment_medians(time_P, trusted_pulses(clean_P, segments), segments)


def trusted_pulses(clean_P: Tensor, segments: Segments) -> Tensor:
    """True for the clean pulses of each event; for all its pulses if none is clean. (P,) bool -> (P,) bool."""
    has_clean_E1 = segment_sum(clean_P.to(torch.float32), segments).unsqueeze(1) > 0
    return clean_P | ~spread(has_clean_E1, segments).squeeze(1)


def segment_medians(values_P: Tensor, used_P: Tensor, segments: Segments) -> Tensor:
    """Median of the used values of each event, the lower one of the two in the middle; 0 if it has none. -> (E,)."""
    if segments.num_particles == 0:
        return values_P.new_zeros(segments.num_events)
    sorted_P = sort_within_events(values_P.masked_fill(~used_P, torch.inf), segments)  # those not used come last
    num_used_E = segment_sum(used_P.to(torch.float32), segments).long()
    middle_E = segments.starts_E + (num_used_E - 1).clamp_min(0) // 2
    median_E = values_P[sorted_P[middle_E.clamp_max(segments.num_particles - 1)]]
    return median_E.masked_fill(num_used_E == 0, 0)


# ---- Pulses that the fits of tracks and point sources use.

MOST_PULSES = 96
"""Pulses of an event that the fits use, at most."""

FARTHEST, REACH_M_NS = 1.5, 0.15
"""Auxiliary pulses nearer than this to a clean one are used, in units of the medium's reach; and how fast scattered
light gets there."""

LEAST_CHARGE_PE = 0.01

_PLACES = 8
_BATCH_PLACES = 1 << 15
"""Places of a batch, about: its tensors stay in the processor's cache."""
_PAIRS_AT_ONCE = 1 << 19
"""Pairs whose distance is computed at once: an event of thousands of sensors has millions."""


class EventPulses(NamedTuple):
    """Pulses of events, in any order inside an event."""

    position_P3: Tensor
    """m."""
    time_P: Tensor
    """ns, relative to the event's reference time."""
    charge_P: Tensor
    """Photo-electrons."""
    clean_P: Tensor
    """True for pulses that are not auxiliary."""
    segments: Segments
    geometry: Geometry
    """Of the detector: fits that know which sensors saw nothing need it."""

    def of(self, kept_P: Tensor) -> EventPulses:
        """Pulses where ``kept`` (P,) bool, of the same events."""
        num_kept = int(kept_P.sum())
        counts_E = segment_sum(kept_P.to(torch.float32), self.segments).long()
        position_P3, time_P, charge_P, clean_P = (column_P[kept_P] for column_P in self[:4])
        segments = Segments.from_counts(counts_E, num_kept)
        return EventPulses(position_P3, time_P, charge_P, clean_P, segments, self.geometry)


class PaddedPulses(NamedTuple):
    """Pulses of a batch of events; empty places are 0."""

    event_B: Tensor
    """Rows of the events among all, int64."""
    position_B3L: Tensor
    time_BL: Tensor
    charge_BL: Tensor
    """Photo-electrons of clean pulses, LEAST_CHARGE_PE at least; 0 for others."""
    present_BL: Tensor
    """1 for a pulse, 0 for an empty place."""
    medium: Medium

    def repeated(self, times: int) -> PaddedPulses:
        """``times`` copies of the batch, one behind the other."""
        copies: dict[str, Any] = {name: torch.cat([getattr(self, name)] * times) for name in self._fields[:-1]}
        return self._replace(**copies)


def used_pulses(pulses: EventPulses) -> EventPulses:
    """Pulses that the fits use, at most MOST_PULSES of an event.

    Clean ones first (all, if none is clean), of too many the earliest; then the auxiliary ones nearest to them in space
    and time. Cost: the auxiliary pulses times MOST_PULSES at most, however many clean ones there are.
    """
    segments, clean_P = pulses.segments, trusted_pulses(pulses.clean_P, pulses.segments)
    pulses = pulses._replace(clean_P=clean_P)
    clean = pulses.of(clean_P)
    kept_P = clean_P.clone()
    kept_P[clean_P] = first_of_events(clean.time_P, clean.segments, MOST_PULSES)
    distance_P = torch.where(kept_P, -1.0, torch.inf)
    free_E = segment_sum(kept_P.to(torch.float32), segments) < MOST_PULSES
    others = (~clean_P & free_E[segments.event_P]).nonzero().squeeze(1)
    distance_P[others] = nearest_distances(
        pulses.position_P3, pulses.time_P, others, kept_P, segments, pulses.geometry.medium
    )
    near_P = distance_P < FARTHEST
    near = pulses.of(near_P)
    near_P[near_P.clone()] = first_of_events(distance_P[near_P], near.segments, MOST_PULSES)
    return pulses.of(near_P)


def thinned_pulses(pulses: EventPulses, most: int) -> tuple[EventPulses, Tensor]:
    """Return every second, third, ... pulse of events that have more than ``most``, and which it is: (E,) int64."""
    segments = pulses.segments
    every_E = ((segments.counts_E + most - 1) // most).clamp_min(1)
    place_P = segments.particles_P - segments.starts_E[segments.event_P]
    return pulses.of(place_P % every_E[segments.event_P] == 0), every_E


def padded_batches(pulses: EventPulses, most_places: int = _BATCH_PLACES) -> Iterator[PaddedPulses]:
    """Batches of events with as many places, about ``most_places`` in all; events without pulses are in none."""
    places_E = (pulses.segments.counts_E + _PLACES - 1) // _PLACES * _PLACES
    for places in torch.unique(places_E[places_E > 0]).tolist():
        place_L = torch.arange(places)
        for event_B in (places_E == places).nonzero().squeeze(1).split(max(most_places // places, 1)):
            present_BL = place_L < pulses.segments.counts_E[event_B].unsqueeze(1)
            pulse_BL = (pulses.segments.starts_E[event_B].unsqueeze(1) + place_L).masked_fill(~present_BL, 0)
            present = present_BL.float()
            position_B3L = (pulses.position_P3[pulse_BL] * present.unsqueeze(2)).transpose(1, 2).contiguous()
            charge_BL = pulses.charge_P[pulse_BL].clamp_min(LEAST_CHARGE_PE) * pulses.clean_P[pulse_BL] * present
            time_BL = pulses.time_P[pulse_BL] * present
            yield PaddedPulses(event_B, position_B3L, time_BL, charge_BL, present, pulses.geometry.medium)


def first_of_events(key_P: Tensor, segments: Segments, most: int) -> Tensor:
    """True for the ``most`` particles of each event with the smallest keys; the first ones of equals. -> (P,) bool."""
    rank_P = segments.particles_P - segments.starts_E[segments.event_P]
    is_first_P = torch.empty_like(key_P, dtype=torch.bool)
    return is_first_P.scatter_(0, sort_within_events(key_P, segments), rank_P < most)


def nearest_distances(
    position_P3: Tensor, time_P: Tensor, of_A: Tensor, to_P: Tensor, segments: Segments, medium: Medium
) -> Tensor:
    """Distance in space and time from each of the pulses ``of`` to the nearest of its event where ``to``. -> (A,).

    In units of the medium's reach. ``of_A``: places, int64, of events with such a pulse; ``to_P``: bool.
    """
    # Columns of coordinates are twice as fast as rows of them.
    columns = [*(position_P3 / medium.reach_m).unbind(1), time_P / (medium.reach_m / REACH_M_NS)]
    (to_C,) = to_P.nonzero(as_tuple=True)
    counts_E = segment_sum(to_P.float(), segments).long()
    event_A = segments.event_P[of_A]
    counts_A, starts_A = counts_E[event_A], (counts_E.cumsum(0) - counts_E)[event_A]
    of, to = ([column_P[some] for column_P in columns] for some in (of_A, to_C))
    pairs, found = offsets_of(counts_A.cpu().numpy()), [torch.zeros(0, device=time_P.device)]
    for first, end in runs_of_events(pairs, _PAIRS_AT_ONCE):
        some, num = slice(first, end), int(pairs[end] - pairs[first])
        found.append(_nearest([column_A[some] for column_A in of], to, counts_A[some], starts_A[some], num))
    return torch.cat(found)


def _nearest(of: list[Tensor], to: list[Tensor], counts_A: Tensor, starts_A: Tensor, num_pairs: int) -> Tensor:
    """Distance of each pulse from the nearest of its event's others, ``counts_A`` from ``starts_A`` on. -> (A,)."""
    pairs = Segments.from_counts(counts_A, num_pairs)
    other_N = torch.arange(num_pairs, device=counts_A.device) + (starts_A - pairs.starts_E).index_select(
        0, pairs.event_P
    )
    square_N = torch.zeros(num_pairs, device=counts_A.device)
    for column_A, column_C in zip(of, to, strict=True):
        apart_N = column_A.index_select(0, pairs.event_P) - column_C.index_select(0, other_N)
        square_N.addcmul_(apart_N, apart_N)
    nearest_A: Tensor = torch.segment_reduce(square_N, "min", lengths=counts_A, unsafe=True)
    return nearest_A.sqrt()


NEAREST_M = 1.0
"""Smallest distance between a sensor and light's source that the fits know."""
TIME_STEP_NS, SHIFT_STEP_M = 100.0, 100.0
"""Units of a fit's steps."""


def first_quartile(values_BL: Tensor, used_BL: Tensor) -> Tensor:
    """Smallest used value of each row that a quarter of them is not above. At least one must be used. -> (B,)."""
    return values_BL.masked_fill(~used_BL, torch.nan).nanquantile(0.25, 1, interpolation="lower")


def strata(spec: tuple[tuple[int, int], ...], num_sensors: int) -> tuple[Tensor, Tensor]:
    """Return ranks of the nearest sensors that a sum over them takes, and the number each stands for. (K,) each.

    ``spec``: how many, each of which stands for how many.
    """
    weight_K = torch.tensor([float(each) for number, each in spec for _ in range(number)])
    rank_K = (weight_K.cumsum(0) - weight_K + weight_K // 2).long()
    there_K = rank_K < num_sensors
    return rank_K[there_K], weight_K[there_K]


# ---- Density of a time residual.

NOISE_SHARE = 0.05
"""Share of the flat part of the density."""
NOISE_WINDOW_NS = 3000.0

_SHAPES = 56
_SHAPE_MIN, _SHAPE_MAX = 0.03, 20.0
"""Range of distance / scattering length, in ice 1 to 670 m; beyond it the density is that at its end."""
_RESIDUALS = 448
_RESIDUAL_MIN_NS, _RESIDUAL_MAX_NS = -400.0, 4000.0
"""Range of the residual; below it only noise is left, above it the density is that at its end."""
_SOFTENING_NS = 10.0
"""Residual at which the steps of the table begin to grow."""
_CELLS = 600
_LN_SHAPE_SPAN = math.log(_SHAPE_MAX / _SHAPE_MIN)


@lru_cache(maxsize=16)
def ln_density_table(jitter_ns: float, medium: Medium) -> Tensor:
    """Table of the ln density and its derivatives by ln distance and residual, on the grid of ln_density().

    (1, 3, shapes, residuals) float32; ``jitter_ns``: standard deviation of the Gaussian.
    """
    shape_S = _SHAPE_MIN * np.exp(np.linspace(0, _LN_SHAPE_SPAN, _SHAPES))
    warped_R = np.linspace(_warped_scalar(_RESIDUAL_MIN_NS), _warped_scalar(_RESIDUAL_MAX_NS), _RESIDUALS)
    # x = w (|w| + √(w² + 4 s)) / 2 solves w = x / √(|x| + s).
    residual_R = warped_R * (np.abs(warped_R) + np.sqrt(warped_R**2 + 4 * _SOFTENING_NS)) / 2
    density_SR = np.stack([convolved_density(shape, residual_R, jitter_ns, medium) for shape in shape_S])
    value_SR = np.log((1 - NOISE_SHARE) * density_SR + NOISE_SHARE / NOISE_WINDOW_NS)
    by_ln_distance_SR = np.gradient(value_SR, np.log(shape_S), axis=0)
    by_residual_SR = np.gradient(value_SR, residual_R, axis=1)
    # Beyond the table the value stays as it is.
    by_ln_distance_SR[[0, -1]] = 0
    by_residual_SR[:, [0, -1]] = 0
    return torch.from_numpy(np.stack([value_SR, by_ln_distance_SR, by_residual_SR])).float().unsqueeze(0)


def convolved_density(
    shape: float, residual_R: npt.NDArray[np.float64], jitter_ns: float, medium: Medium
) -> npt.NDArray[np.float64]:
    """Density of the delay by scattering plus a Gaussian of standard deviation ``jitter_ns``, 1/ns. (R,) -> (R,).

    Far from no delay the Gamma density is smooth: Gauss-Hermite quadrature. Near it, where it may be infinite
    (shape < 1), the sum over cells of their probability times the Gaussian around their mean delay.
    """
    from scipy import special  # a quarter of a second to import: only where a table is made

    density_R, rate_per_ns = np.empty(residual_R.shape), medium.scattering_rate_per_ns
    near_R = residual_R < 8 * jitter_ns
    edge_C = np.concatenate([[0.0], np.geomspace(1e-3, 17, _CELLS) * jitter_ns])
    probability_C = np.diff(special.gammainc(shape, rate_per_ns * edge_C))
    moment_C = np.diff(special.gammainc(shape + 1, rate_per_ns * edge_C)) * shape / rate_per_ns
    middle_C = (edge_C[1:] + edge_C[:-1]) / 2
    mean_C = np.divide(moment_C, probability_C, out=middle_C, where=probability_C > 1e-300)
    scaled_RC = (residual_R[near_R, None] - mean_C) / jitter_ns
    density_R[near_R] = np.exp(-0.5 * scaled_RC**2) @ probability_C / (math.sqrt(2 * math.pi) * jitter_ns)
    node_N, weight_N = np.polynomial.hermite_e.hermegauss(12)
    delay_RN = residual_R[~near_R, None] + jitter_ns * node_N
    ln_gamma_RN = special.xlogy(shape - 1, delay_RN) - rate_per_ns * delay_RN
    ln_norm = shape * math.log(rate_per_ns) - special.gammaln(shape)
    density_R[~near_R] = np.exp(ln_gamma_RN + ln_norm) @ weight_N / math.sqrt(2 * math.pi)
    return density_R


def ln_density(table: Tensor, distance: Tensor, residual: Tensor, medium: Medium) -> Tensor:
    """ln density of ``residual`` ns of light that travelled ``distance`` m > 0, by interpolation, and its derivatives.

    (N), (N) -> (3, N): ln (1/ns), the same by ln distance, by residual in 1/ns. Of a table of the first alone: (1, N).
    """
    row = (torch.log(distance) - math.log(_SHAPE_MIN * medium.scattering_m)) * (2 / _LN_SHAPE_SPAN) - 1
    low, high = _warped_scalar(_RESIDUAL_MIN_NS), _warped_scalar(_RESIDUAL_MAX_NS)
    column = residual * (residual.abs() + _SOFTENING_NS).rsqrt() * (2 / (high - low)) - (high + low) / (high - low)
    place_1N2 = torch.stack([column, row], -1).view(1, -1, 1, 2).nan_to_num()  # the gradient by a NaN ends the process
    return F.grid_sample(table, place_1N2, padding_mode="border", align_corners=True).view(-1, *distance.shape)


def _warped_scalar(residual_ns: float) -> float:
    """Coordinate in which the table's columns are equidistant: steps that grow as the root of the residual."""
    return residual_ns / math.sqrt(abs(residual_ns) + _SOFTENING_NS)
