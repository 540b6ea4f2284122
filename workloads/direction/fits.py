"""Classical fits of an event's pulses: a line, a track and a point source of light, the values of `classical_fits`.

The plain line fit is IceCube's LineFit (AMANDA, astro-ph/0407044, 3.1.1): least squares of r = r0 + v t. The robust one
repeats it with the weights of Huber's loss (Aartsen et al., arXiv:1308.5501), so that scattered light and noise far
from the line pull as much as light at 60 m, no more.

The likelihood of a track has many maxima. So its fit starts from the line fit and from START_TILT_RAD away from it on
four sides, with a wide jitter of the times, which smooths the likelihood; the best two go on with less jitter, and the
better one is the result. Nothing is random: an event's fits depend on its pulses alone.

Events that tell little have finite values too. Without pulses: the direction straight up, all else 0. With pulses at
one place or one time the line stands still (speed 0) and points straight up, where the track's fit starts. Without a
clean pulse all its pulses count as clean.

A track is a particle at the speed of light, whose Cherenkov light reaches the sensors. Its state, 7 numbers: unit
vector of its travel, its point (m) at a time, that time (ns). A step, 5 numbers: the time (100 ns), two tilts (rad),
two shifts of the point across the track (100 m). Light leaves at the Cherenkov angle θ, cos θ = 1 / phase index. A
sensor at the distance ρ from the track, l along it from the point, sees it l / c + ρ / c (group index / sin θ -
1 / tan θ) after the particle is at the point; the light travelled ρ / sin θ.

A point source is the shower of a cascade, or the vertex of a track. Its state, 4 numbers: position (m) and time (ns).
A step, 4 numbers: the time (100 ns), three shifts (100 m). Light reaches a sensor at the distance R after
R / c times the group index.

A step of the maximisation solves (information + damping) step = score, in which the information matrix is the sum of
the outer products of the pulses' scores (Berndt, Hall, Hall and Hausman 1974): first derivatives suffice, and the
matrix is positive. The damping of each event falls after a step that was taken and rises after one that would have made
its likelihood smaller (Levenberg and Marquardt).

The density of a pulse's time residual is the Pandel function (Ahrens et al., AMANDA, astro-ph/0407044, eq. 14-16) of
light that travelled ``distance``: a Gamma distribution of the delay behind light that doesn't scatter, of shape
distance / λ and rate 1 / τ + c / (n λ_a), convolved with a Gaussian, the jitter of the sensors' times, and mixed with a
flat part, the noise.

Times are relative to the event's reference time, which has one definition for these fits and for the models.

E events, P pulses, S starts; of a batch: B events, K parameters, D numbers of a state, L places for pulses, a multiple
of 8 that depends on the event alone, so that an event's fits don't depend on the others; N pulses in any shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from common.errors import BadInputError
from common.files.rows import offsets_of
from workloads.base.batch import runs_of_events
from workloads.base.segments import Segments, segment_sum, sort_within_events, spread
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.geometry import LIGHT_SPEED_M_NS, Geometry, Medium

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
"""Auxiliary pulses (and sensors) nearer than this to a clean one are used, in units of the medium's reach; and how fast
scattered light gets there."""

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
    medium: Medium

    def of(self, kept_P: Tensor) -> EventPulses:
        """Pulses where ``kept`` (P,) bool, of the same events."""
        num_kept = int(kept_P.sum())
        counts_E = segment_sum(kept_P.to(torch.float32), self.segments).long()
        return EventPulses(
            self.position_P3[kept_P],
            self.time_P[kept_P],
            self.charge_P[kept_P],
            self.clean_P[kept_P],
            Segments.from_counts(counts_E, num_kept),
            self.medium,
        )


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
    distance_P[others] = nearest_distances(pulses.position_P3, pulses.time_P, others, kept_P, segments, pulses.medium)
    near_P = distance_P < FARTHEST
    near = pulses.of(near_P)
    near_P[near_P.clone()] = first_of_events(distance_P[near_P], near.segments, MOST_PULSES)
    return pulses.of(near_P)


def padded_batches(pulses: EventPulses) -> Iterator[PaddedPulses]:
    """Batches of events with as many places; events without pulses are in none."""
    places_E = (pulses.segments.counts_E + _PLACES - 1) // _PLACES * _PLACES
    for places in places_E.unique().tolist():
        if places:
            events = (places_E == places).nonzero().squeeze(1)
            place_L = torch.arange(places)
            for event_B in events.split(max(_BATCH_PLACES // places, 1)):
                present_BL = place_L < pulses.segments.counts_E[event_B].unsqueeze(1)
                pulse_BL = (pulses.segments.starts_E[event_B].unsqueeze(1) + place_L).masked_fill(~present_BL, 0)
                present = present_BL.float()
                position_B3L = (pulses.position_P3[pulse_BL] * present.unsqueeze(2)).transpose(1, 2).contiguous()
                charge_BL = pulses.charge_P[pulse_BL].clamp_min(LEAST_CHARGE_PE) * pulses.clean_P[pulse_BL] * present
                time_BL = pulses.time_P[pulse_BL] * present
                yield PaddedPulses(event_B, position_B3L, time_BL, charge_BL, present, pulses.medium)


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


# ---- Maximisation.

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""State (B, D) -> ln likelihood (B,), and scores of the pulses (B, K, L): its derivatives by a step, a pulse each."""

Move = Callable[[Tensor, Tensor], Tensor]
"""State (B, D) and step (B, K) -> state (B, D)."""

_FIRST_DAMPING = 0.3
_LEAST_DAMPING, _MOST_DAMPING = 0.2, 1e4
_AFTER_SUCCESS, _AFTER_FAILURE = 0.2, 8.0
_FLOOR = 1e-3
"""Added to the information: a parameter that no pulse tells anything of stays where it is."""
_LONGEST_STEP = 1.0


def maximise(state_BD: Tensor, evaluate: Evaluate, move: Move, steps: int) -> tuple[Tensor, Tensor]:
    """State of the largest ln likelihood found in ``steps`` steps, and that likelihood. -> (B, D), (B,)."""
    value_B, score_BK, information_BKK = _evaluated(evaluate, state_BD)
    damping_B = torch.full_like(value_B, _FIRST_DAMPING)
    for _ in range(steps):
        diagonal_BK = information_BKK.diagonal(dim1=1, dim2=2)
        damped_BKK = information_BKK + torch.diag_embed(damping_B.unsqueeze(1) * diagonal_BK + _FLOOR)
        step_BK = torch.linalg.solve_ex(damped_BKK, score_BK)[0]
        length_B1 = step_BK.abs().amax(1, keepdim=True)
        trial_BD = move(state_BD, step_BK * (_LONGEST_STEP / length_B1.clamp_min(_LONGEST_STEP)))
        found_B, found_BK, found_BKK = _evaluated(evaluate, trial_BD)
        better_B = found_B > value_B
        value_B = torch.where(better_B, found_B, value_B)
        state_BD = torch.where(better_B.unsqueeze(1), trial_BD, state_BD)
        score_BK = torch.where(better_B.unsqueeze(1), found_BK, score_BK)
        information_BKK = torch.where(better_B.view(-1, 1, 1), found_BKK, information_BKK)
        damping_B = (damping_B * torch.where(better_B, _AFTER_SUCCESS, _AFTER_FAILURE)).clamp(
            _LEAST_DAMPING, _MOST_DAMPING
        )
    return state_BD, value_B


def _evaluated(evaluate: Evaluate, state_BD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ln likelihood (B,), score (B, K) and information (B, K, K)."""
    value_B, score_BKL = evaluate(state_BD)
    return value_B, score_BKL.sum(2), score_BKL @ score_BKL.mT


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

    (N), (N) -> (3, N): ln (1/ns), the same by ln distance, and by residual in 1/ns.
    """
    row = (torch.log(distance) - math.log(_SHAPE_MIN * medium.scattering_m)) * (2 / _LN_SHAPE_SPAN) - 1
    low, high = _warped_scalar(_RESIDUAL_MIN_NS), _warped_scalar(_RESIDUAL_MAX_NS)
    column = residual * (residual.abs() + _SOFTENING_NS).rsqrt() * (2 / (high - low)) - (high + low) / (high - low)
    place_1N2 = torch.stack([column, row], -1).view(1, -1, 1, 2)
    return F.grid_sample(table, place_1N2, padding_mode="border", align_corners=True).view(3, *distance.shape)


def _warped_scalar(residual_ns: float) -> float:
    """Coordinate in which the table's columns are equidistant: steps that grow as the root of the residual."""
    return residual_ns / math.sqrt(abs(residual_ns) + _SOFTENING_NS)


# ---- Tracks and point sources of light.

_NEAREST_M = 1.0
_TIME_STEP_NS, _SHIFT_STEP_M = 100.0, 100.0


def track_state(travel_B3: Tensor, point_B3: Tensor, pulses: PaddedPulses) -> Tensor:
    """Tracks in a direction through a point, at the time that puts a quarter of the clean pulses before it. (B, 7)."""
    state_B7 = torch.cat([travel_B3, point_B3, torch.zeros_like(point_B3[:, :1])], 1)
    residual_BL = _track_seen(state_B7, pulses)[0]
    state_B7[:, 6] = first_quartile(residual_BL, pulses.charge_BL > 0)
    return state_B7


def first_quartile(values_BL: Tensor, used_BL: Tensor) -> Tensor:
    """Smallest used value of each row that a quarter of them is not above. At least one must be used. -> (B,)."""
    sorted_BL = values_BL.masked_fill(~used_BL, torch.inf).sort(1)[0]
    quarter_B1 = (used_BL.sum(1, keepdim=True) - 1).clamp_min(0) // 4
    return sorted_BL.gather(1, quarter_B1).squeeze(1)


def track_scores(state_B7: Tensor, pulses: PaddedPulses, table: Tensor) -> tuple[Tensor, Tensor]:
    """ln likelihood (B,) of tracks, and its derivatives by a step, a pulse each (B, 5, L)."""
    residual_BL, rho_BL, along_BL, first_BL, second_BL = _track_seen(state_B7, pulses)
    medium, path_BL = pulses.medium, rho_BL / pulses.medium.sin_cherenkov
    value_BL, by_ln_distance_BL, by_residual_BL = ln_density(table, path_BL, residual_BL, medium)
    slope_BL = by_residual_BL * pulses.present_BL
    by_rho_BL = by_ln_distance_BL * pulses.present_BL / rho_BL - slope_BL * medium.cone_delay_ns_m
    # A tilt moves the sensor along the track and, by -l, across it.
    turn_BL = by_rho_BL * along_BL + slope_BL * rho_BL / LIGHT_SPEED_M_NS
    score_BL5 = [
        slope_BL * -_TIME_STEP_NS,
        -first_BL * turn_BL,
        -second_BL * turn_BL,
        first_BL * by_rho_BL * -_SHIFT_STEP_M,
        second_BL * by_rho_BL * -_SHIFT_STEP_M,
    ]
    return (value_BL * pulses.present_BL).sum(1), torch.stack(score_BL5, 1)


def moved_track(state_B7: Tensor, step_B5: Tensor) -> Tensor:
    """Tracks after a step. (B, 7), (B, 5) -> (B, 7)."""
    travel_B3, point_B3, time_B1 = state_B7.split((3, 3, 1), 1)
    first_B3, second_B3 = across(travel_B3)
    tilted_B3 = travel_B3 + step_B5[:, 1:2] * first_B3 + step_B5[:, 2:3] * second_B3
    shifted_B3 = point_B3 + _SHIFT_STEP_M * (step_B5[:, 3:4] * first_B3 + step_B5[:, 4:5] * second_B3)
    return torch.cat([F.normalize(tilted_B3, dim=1), shifted_B3, time_B1 + _TIME_STEP_NS * step_B5[:, :1]], 1)


def across(travel_B3: Tensor) -> tuple[Tensor, Tensor]:
    """Two unit vectors at right angles to ``travel`` and to each other, smooth but for one direction. (B, 3) each.

    Duff et al., Building an orthonormal basis, revisited (JCGT 6, 2017).
    """
    x_B, y_B, z_B = travel_B3.unbind(1)
    sign_B = torch.where(z_B < 0, -1.0, 1.0)
    a_B = -1 / (sign_B + z_B)
    b_B = x_B * y_B * a_B
    first_B3 = torch.stack([1 + sign_B * x_B * x_B * a_B, sign_B * b_B, -sign_B * x_B], 1)
    return first_B3, torch.stack([b_B, sign_B + y_B * y_B * a_B, -y_B], 1)


def _track_seen(state_B7: Tensor, pulses: PaddedPulses) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Time residual, distance to the track, length along it, and the two parts of the unit vector across. (B, L)."""
    travel_B3, point_B3, time_B1 = state_B7.split((3, 3, 1), 1)
    x_BL, y_BL, z_BL = (pulses.position_B3L - point_B3.unsqueeze(2)).unbind(1)
    along_BL, first_BL, second_BL = (
        (axis_B3[:, 0:1] * x_BL).addcmul_(axis_B3[:, 1:2], y_BL).addcmul_(axis_B3[:, 2:3], z_BL)
        for axis_B3 in (travel_B3, *across(travel_B3))
    )
    rho_BL = (first_BL.square() + second_BL.square()).clamp_min(_NEAREST_M**2).sqrt()
    residual_BL = pulses.time_BL - time_B1 - along_BL / LIGHT_SPEED_M_NS - rho_BL * pulses.medium.cone_delay_ns_m
    return residual_BL, rho_BL, along_BL, first_BL / rho_BL, second_BL / rho_BL


def vertex_state(pulses: PaddedPulses) -> Tensor:
    """Point sources in the middle of the light, at the time that puts a quarter of the clean pulses before it."""
    light_B1 = pulses.charge_BL.sum(1, keepdim=True)
    middle_B3 = (pulses.position_B3L * pulses.charge_BL.unsqueeze(1)).sum(2) / light_B1
    state_B4 = torch.cat([middle_B3, torch.zeros_like(light_B1)], 1)
    state_B4[:, 3] = first_quartile(_vertex_seen(state_B4, pulses)[0], pulses.charge_BL > 0)
    return state_B4


def vertex_scores(state_B4: Tensor, pulses: PaddedPulses, table: Tensor) -> tuple[Tensor, Tensor]:
    """ln likelihood (B,) of point sources, and its derivatives by a step, a pulse each (B, 4, L)."""
    residual_BL, distance_BL, unit_B3L = _vertex_seen(state_B4, pulses)
    value_BL, by_ln_distance_BL, by_residual_BL = ln_density(table, distance_BL, residual_BL, pulses.medium)
    slope_BL = by_residual_BL * pulses.present_BL
    by_distance_BL = by_ln_distance_BL * pulses.present_BL / distance_BL - slope_BL * pulses.medium.point_delay_ns_m
    score_B3L = unit_B3L * (by_distance_BL * -_SHIFT_STEP_M).unsqueeze(1)
    return (value_BL * pulses.present_BL).sum(1), torch.cat([(slope_BL * -_TIME_STEP_NS).unsqueeze(1), score_B3L], 1)


def moved_vertex(state_B4: Tensor, step_B4: Tensor) -> Tensor:
    """Point sources after a step. (B, 4), (B, 4) -> (B, 4)."""
    position_B3 = state_B4[:, :3] + _SHIFT_STEP_M * step_B4[:, 1:]
    return torch.cat([position_B3, state_B4[:, 3:] + _TIME_STEP_NS * step_B4[:, :1]], 1)


def _vertex_seen(state_B4: Tensor, pulses: PaddedPulses) -> tuple[Tensor, Tensor, Tensor]:
    """Time residual and distance (B, L), and the unit vector from the source (B, 3, L)."""
    from_B3L = pulses.position_B3L - state_B4[:, :3].unsqueeze(2)
    distance_BL = from_B3L.square().sum(1).clamp_min(_NEAREST_M**2).sqrt()
    residual_BL = pulses.time_BL - state_B4[:, 3:] - distance_BL * pulses.medium.point_delay_ns_m
    return residual_BL, distance_BL, from_B3L / distance_BL.unsqueeze(1)


# ---- Lines.

REWEIGHTINGS = 2
"""Repetitions with new weights; more of them change the direction by less than a tenth of its error."""

FULL_WEIGHT = 0.4
"""Residual up to which a pulse counts in full, in units of the medium's reach: 60 m in ice."""

_LEAST_VARIANCE_NS2 = 1e-6
_LEAST_SPEED_M_NS = 1e-9
_STRAIGHT_UP = (0.0, 0.0, -1.0)
"""Direction of travel of an event that has none: down, as from the source straight above."""


class Lines(NamedTuple):
    """Lines of events, through their points."""

    travel_E3: Tensor
    """Unit vector of the motion, away from the source; straight down if the speed is 0."""
    point_E3: Tensor
    """Weighted mean of the pulses' positions, m."""
    speed_E: Tensor
    """m/ns."""
    residual_E: Tensor
    """Median distance between a pulse and the line at its time, m."""


def line_fits(
    position_P3: Tensor, time_P: Tensor, segments: Segments, medium: Medium, reweightings: int = REWEIGHTINGS
) -> Lines:
    """Lines through each event's pulses; ``reweightings`` = 0 is the plain LineFit.

    ``position_P3`` m and ``time_P`` ns, relative to something near the event; all pulses count, so that the caller
    passes the clean ones. An event without pulses: zeros and straight down.
    """
    residual_P1, full_m = torch.zeros_like(time_P).unsqueeze(1), FULL_WEIGHT * medium.reach_m
    for _ in range(reweightings + 1):
        weight_P1 = full_m / residual_P1.clamp_min(full_m)
        velocity_E3, mean_E4 = _least_squares(position_P3, time_P, weight_P1, segments)
        centred_P4 = torch.cat([position_P3, time_P.unsqueeze(1)], 1) - spread(mean_E4, segments)
        along_P3 = spread(velocity_E3, segments) * centred_P4[:, 3:]
        residual_P1 = (centred_P4[:, :3] - along_P3).norm(dim=1, keepdim=True)
    residual_P = residual_P1.squeeze(1)
    speed_E = velocity_E3.norm(dim=1)
    moves_E1 = (speed_E > _LEAST_SPEED_M_NS).unsqueeze(1)
    travel_E3 = torch.where(
        moves_E1, velocity_E3 / speed_E.clamp_min(_LEAST_SPEED_M_NS).unsqueeze(1), velocity_E3.new_tensor(_STRAIGHT_UP)
    )
    residual_E = segment_medians(residual_P, torch.ones_like(residual_P, dtype=torch.bool), segments)
    return Lines(travel_E3, mean_E4[:, :3], speed_E, residual_E)


def _least_squares(position_P3: Tensor, time_P: Tensor, weight_P1: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """Velocity (E, 3), and mean of position and time (E, 4), of the weighted least squares of r = r0 + v t."""
    values_P4 = torch.cat([position_P3, time_P.unsqueeze(1)], 1)
    sums_E5 = segment_sum(torch.cat([weight_P1 * values_P4, weight_P1], 1), segments)
    mean_E4 = sums_E5[:, :4] / sums_E5[:, 4:].clamp_min(torch.finfo(sums_E5.dtype).tiny)
    centred_P4 = values_P4 - spread(mean_E4, segments)
    moments_E4 = segment_sum(weight_P1 * centred_P4 * centred_P4[:, 3:], segments)
    return moments_E4[:, :3] / moments_E4[:, 3:].clamp_min(_LEAST_VARIANCE_NS2), mean_E4


# ---- All fits together.

START_TILT_RAD = math.radians(30)
TRACKS_KEPT = 2
"""Tracks of an event that go on from the start to the end."""

START_JITTER_NS, START_STEPS = 60.0, 15
"""Jitter of the times at the start, and steps of the maximisation with it."""
END_JITTERS_NS, END_STEPS = (20.0, 6.0), 10
"""Jitters after that, and steps with each. The toy detector's own is 3 ns, which has more maxima."""

_CHUNK_PULSES = 1 << 19
"""Pulses of the events that are fitted at a time, about: bounds the memory."""
_LINE, _TRACK, _VERTEX = slice(0, 8), slice(8, 16), slice(16, 21)


def classical_fits(
    sensor_P: npt.NDArray[np.int16],
    time_P: npt.NDArray[np.float32],
    charge_P: npt.NDArray[np.float32],
    auxiliary_P: npt.NDArray[np.bool_],
    offsets_E1: npt.NDArray[np.int64],
    geometry: Geometry,
    fit: Callable[[EventPulses], Tensor] | None = None,
) -> npt.NDArray[np.float32]:
    """Return line, track and vertex of each event, as CLASSICAL_FITS, (E, 21), or the results of another ``fit``.

    Event e owns the pulses offsets[e] to offsets[e + 1]; times in ns, charges in photo-electrons. Memory beside the
    result: that of _CHUNK_PULSES pulses, or of the largest event. Raises BadInputError for a sensor that the geometry
    lacks.
    """
    used_P = sensor_P[offsets_E1[0] : offsets_E1[-1]]
    if len(used_P) and (used_P.min() < 0 or used_P.max() >= len(geometry)):
        wrong = used_P.max() if used_P.min() >= 0 else used_P.min()
        raise BadInputError(
            f"a pulse of sensor {wrong}, but the geometry has the sensors 0 to {len(geometry) - 1}: "
            "is it of another detector?"
        )
    found = []
    for first, end in runs_of_events(offsets_E1, _CHUNK_PULSES):
        own = slice(int(offsets_E1[first]), int(offsets_E1[end]))
        offsets = torch.from_numpy(offsets_E1[first : end + 1] - own.start)
        time, clean = torch.from_numpy(time_P[own].copy()), torch.from_numpy(~auxiliary_P[own])
        segments = Segments.from_offsets(offsets, len(time))
        reference_E = reference_times(time, clean, offsets)
        pulses = EventPulses(
            torch.from_numpy(geometry.position_S3[sensor_P[own]]),
            time - reference_E[segments.event_P],
            torch.from_numpy(charge_P[own].copy()),
            clean,
            segments,
            geometry.medium,
        )
        found.append((fit or fits_of)(pulses).numpy())
    return np.concatenate(found) if found else np.zeros((0, len(CLASSICAL_FITS)), np.float32)


def fits_of(pulses: EventPulses) -> Tensor:
    """Line, track and vertex of each event, as CLASSICAL_FITS. -> (E, 21)."""
    lines = _lines(pulses)
    fits_E21 = torch.zeros(pulses.segments.num_events, len(CLASSICAL_FITS))
    fits_E21[:, _LINE] = torch.cat(
        [-lines.travel_E3, lines.point_E3, lines.speed_E.unsqueeze(1), lines.residual_E.unsqueeze(1)], 1
    )
    fits_E21[:, 8:11] = -lines.travel_E3
    for batch in padded_batches(used_pulses(pulses)):
        lines_B = Lines(*(values[batch.event_B] for values in lines))
        fits_E21[batch.event_B, _TRACK] = _tracks(batch, lines_B)
        fits_E21[batch.event_B, _VERTEX] = _vertices(batch)
    return fits_E21


def plain_lines(pulses: EventPulses) -> Tensor:
    """Return directions of the sources by LineFit without weights, the classical baseline. -> (E, 3) unit vectors."""
    return -_lines(pulses, reweightings=0).travel_E3


def _lines(pulses: EventPulses, **options: int) -> Lines:
    clean = pulses.of(trusted_pulses(pulses.clean_P, pulses.segments))
    return line_fits(clean.position_P3, clean.time_P, clean.segments, clean.medium, **options)


def _tracks(pulses: PaddedPulses, lines: Lines) -> Tensor:
    """Direction of the source, point, time, ln likelihood a pulse. -> (B, 8)."""
    tilt, sides = math.tan(START_TILT_RAD), across(lines.travel_E3)
    tilted = [F.normalize(lines.travel_E3 + sign * tilt * side, dim=1) for side in sides for sign in (1, -1)]
    starts_S = [lines.travel_E3, *tilted]
    copies = pulses.repeated(len(starts_S))
    state = track_state(torch.cat(starts_S), lines.point_E3.repeat(len(starts_S), 1), copies)
    state, value = _better(track_scores, moved_track, state, copies, START_JITTER_NS, START_STEPS)
    state, value = _best(state, value, len(starts_S), TRACKS_KEPT)
    copies = pulses.repeated(TRACKS_KEPT)
    for jitter_ns in END_JITTERS_NS:
        state, value = _better(track_scores, moved_track, state, copies, jitter_ns, END_STEPS)
    state, value = _best(state, value, TRACKS_KEPT, 1)
    travel_B3, rest_B4 = state.split((3, 4), 1)
    return torch.cat([-travel_B3, rest_B4, (value / pulses.present_BL.sum(1)).unsqueeze(1)], 1)


def _better(
    scores: Callable[..., tuple[Tensor, Tensor]],
    moved: Move,
    state: Tensor,
    pulses: PaddedPulses,
    jitter_ns: float,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """Return states of larger likelihood, for times with that jitter, and their ln likelihood."""
    table = ln_density_table(jitter_ns, pulses.medium)
    return maximise(state, partial(scores, pulses=pulses, table=table), moved, steps)


def _best(state: Tensor, value: Tensor, starts: int, kept: int) -> tuple[Tensor, Tensor]:
    """The ``kept`` states of each event with the largest values, of (starts × B, 7) and (starts × B,)."""
    value_SB = value.view(starts, -1)
    best_SB = value_SB.argsort(dim=0, descending=True, stable=True)[:kept]
    state_SBD = state.view(*value_SB.shape, -1)
    state_SBD = state_SBD.gather(0, best_SB.unsqueeze(2).expand(-1, -1, state_SBD.shape[2]))
    return state_SBD.flatten(0, 1), value_SB.gather(0, best_SB).flatten()


def _vertices(pulses: PaddedPulses) -> Tensor:
    """Position, time, ln likelihood a pulse. -> (B, 5)."""
    state, value = _better(vertex_scores, moved_vertex, vertex_state(pulses), pulses, START_JITTER_NS, START_STEPS)
    for jitter_ns in END_JITTERS_NS:
        state, value = _better(vertex_scores, moved_vertex, state, pulses, jitter_ns, END_STEPS)
    return torch.cat([state, (value / pulses.present_BL.sum(1)).unsqueeze(1)], 1)
