"""Classical fits of an event's pulses: a line, a track and a point source of light, the values of `classical_fits`.

The plain line fit is IceCube's LineFit (AMANDA, astro-ph/0407044, 3.1.1): least squares of r = r0 + v t. The robust one
repeats it with the weights of Huber's loss (Aartsen et al., arXiv:1308.5501), so that scattered light and noise far
from the line pull as much as light at 60 m, no more.

The likelihood of a track has many maxima. So its fit starts from the line fit, from START_TILT_RAD away from it on four
sides, and from directions all over the sphere, with a wide jitter of the times, which smooths the likelihood; the best
of these, which are far apart, go on with all light (tracks.py), and the best of them with less jitter. Nothing is
random: an event's fits depend on its pulses alone.

Events that tell little have finite values too. Without pulses: the direction straight up, all else 0. With pulses at
one place or one time the line stands still (speed 0) and points straight up. Without a clean pulse all its pulses count
as clean.

A point source is the shower of a cascade, or the vertex of a track. Its state, 4 numbers: position (m) and time (ns).
A step, 4 numbers: the time (100 ns), three shifts (100 m). Light reaches a sensor at the distance R after
R / c times the group index.

A step of the maximisation solves (information + damping) step = score, in which the information matrix is the sum of
the outer products of the pulses' scores (Berndt, Hall, Hall and Hausman 1974): first derivatives suffice, and the
matrix is positive. The damping of each event falls after a step that was taken and rises after one that would have made
its likelihood smaller (Levenberg and Marquardt).

E events, P pulses, F values, S starts, C candidates; of a batch: B events, K parameters, D numbers of a state, L places
for pulses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from common.errors import BadInputError
from workloads.base.batch import runs_of_events
from workloads.base.segments import Segments, segment_sum, spread
from workloads.direction import tracks
from workloads.direction.cascades import MOST_PULSES, cascade_posteriors, sphere
from workloads.direction.columns import CLASSICAL_FITS, MOST_CHARGE_PE, MOST_NS
from workloads.direction.geometry import Geometry, Medium
from workloads.direction.light import (
    NEAREST_M,
    SHIFT_STEP_M,
    TIME_STEP_NS,
    EventPulses,
    PaddedPulses,
    first_quartile,
    ln_density,
    ln_density_table,
    padded_batches,
    reference_times,
    segment_medians,
    thinned_pulses,
    trusted_pulses,
    used_pulses,
)

# ---- Maximisation.

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""State (B, D) -> ln likelihood (B,), and scores of the pulses (B, K, L): its derivatives by a step, a pulse each."""

Move = Callable[[Tensor, Tensor], Tensor]
"""State (B, D) and step (B, K) -> state (B, D)."""

_FIRST_DAMPING = 1.0
_LEAST_DAMPING, _MOST_DAMPING = 0.2, 1e4
_AFTER_SUCCESS, _AFTER_FAILURE = 0.2, 30.0
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


# ---- Point sources of light.


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
    score_B3L = unit_B3L * (by_distance_BL * -SHIFT_STEP_M).unsqueeze(1)
    return (value_BL * pulses.present_BL).sum(1), torch.cat([(slope_BL * -TIME_STEP_NS).unsqueeze(1), score_B3L], 1)


def moved_vertex(state_B4: Tensor, step_B4: Tensor) -> Tensor:
    """Point sources after a step. (B, 4), (B, 4) -> (B, 4)."""
    position_B3 = state_B4[:, :3] + SHIFT_STEP_M * step_B4[:, 1:]
    return torch.cat([position_B3, state_B4[:, 3:] + TIME_STEP_NS * step_B4[:, :1]], 1)


def _vertex_seen(state_B4: Tensor, pulses: PaddedPulses) -> tuple[Tensor, Tensor, Tensor]:
    """Time residual and distance (B, L), and the unit vector from the source (B, 3, L)."""
    from_B3L = pulses.position_B3L - state_B4[:, :3].unsqueeze(2)
    distance_BL = from_B3L.square().sum(1).clamp_min(NEAREST_M**2).sqrt()
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
    values_P4 = torch.cat([position_P3, time_P.unsqueeze(1)], 1)
    residual_P1, full_m = torch.zeros_like(time_P).unsqueeze(1), FULL_WEIGHT * medium.reach_m
    for _ in range(reweightings + 1):
        weight_P1 = full_m / residual_P1.clamp_min(full_m)
        velocity_E3, mean_E4, centred_P4 = _least_squares(values_P4, weight_P1, segments)
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


def _least_squares(values_P4: Tensor, weight_P1: Tensor, segments: Segments) -> tuple[Tensor, Tensor, Tensor]:
    """Velocity (E, 3) of the weighted least squares of r = r0 + v t, mean position and time (E, 4), values from it."""
    sums_E5 = segment_sum(torch.cat([weight_P1 * values_P4, weight_P1], 1), segments)
    mean_E4 = sums_E5[:, :4] / sums_E5[:, 4:].clamp_min(torch.finfo(sums_E5.dtype).tiny)
    centred_P4 = values_P4 - spread(mean_E4, segments)
    moments_E4 = segment_sum(weight_P1 * centred_P4 * centred_P4[:, 3:], segments)
    return moments_E4[:, :3] / moments_E4[:, 3:].clamp_min(_LEAST_VARIANCE_NS2), mean_E4, centred_P4


# ---- All fits together.

START_TILT_RAD = math.radians(30)
START_DIRECTIONS = 24
"""Directions all over the sphere that the fit of a track starts from, too. Twice as many change nothing."""

START_ROUND = (60.0, 15)
"""Jitter of the times, ns, with which a track starts, and steps of the maximisation with it."""
CANDIDATES, CANDIDATES_APART_RAD = 8, math.radians(6)
"""Tracks that go on from there with all light, and the angle between them."""
CANDIDATES_ROUND = (60.0, 3)
"""Jitter and steps of each candidate with all light."""
LIT_ROUNDS = ((60.0, 8), (20.0, 10), (6.0, 12))
"""The same of the best of them."""
VERTEX_ROUNDS = (START_ROUND, (20.0, 10), (6.0, 10))
"""The same of a point source. The toy detector's own jitter is 3 ns, which has more maxima."""

_PLACES = 1 << 13
"""Places for pulses in a batch of tracks with all light, about: bounds the memory of CANDIDATES times as many."""
_CHUNK_PULSES = 1 << 19
"""Pulses of the events that are fitted at a time, about: bounds the memory."""
_LINE, _TRACK, _VERTEX, _CASCADE = slice(0, 8), slice(8, 15), slice(16, 21), slice(21, 26)


@torch.inference_mode(False)  # it takes gradients
def classical_fits(
    sensor_P: npt.NDArray[np.int16],
    time_P: npt.NDArray[np.float32],
    charge_P: npt.NDArray[np.float32],
    auxiliary_P: npt.NDArray[np.bool_],
    offsets_E1: npt.NDArray[np.int64],
    geometry: Geometry,
    fit: Callable[[EventPulses], Tensor] | None = None,
) -> npt.NDArray[np.float32]:
    """Return all fits of each event, as CLASSICAL_FITS, (E, F), or the results of another ``fit``.

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
            (time - reference_E[segments.event_P]).clamp_(-MOST_NS, MOST_NS),
            torch.from_numpy(charge_P[own].copy()).clamp_(max=MOST_CHARGE_PE),
            clean,
            segments,
            geometry,
        )
        found.append((fit or fits_of)(pulses).numpy())
    return np.concatenate(found) if found else np.zeros((0, len(CLASSICAL_FITS)), np.float32)


def fits_of(pulses: EventPulses) -> Tensor:
    """Line, track, vertex and cascade of each event, as CLASSICAL_FITS. -> (E, F)."""
    lines = _lines(pulses)
    fits_EF = torch.zeros(pulses.segments.num_events, len(CLASSICAL_FITS))
    fits_EF[:, _LINE] = torch.cat(
        [-lines.travel_E3, lines.point_E3, lines.speed_E.unsqueeze(1), lines.residual_E.unsqueeze(1)], 1
    )
    tracks_EC7 = F.pad(lines.travel_E3, (0, 4)).unsqueeze(1).repeat(1, CANDIDATES, 1)
    used, table = used_pulses(pulses), ln_density_table(VERTEX_ROUNDS[-1][0], pulses.geometry.medium)
    for batch in padded_batches(used):
        lines_B = Lines(*(values[batch.event_B] for values in lines))
        tracks_EC7[batch.event_B] = _tracks(batch, lines_B)
        fits_EF[batch.event_B, _VERTEX] = _vertices(batch)
    track_E7 = _lit_tracks(pulses, tracks_EC7)
    fits_EF[:, _TRACK] = torch.cat([-track_E7[:, :3], track_E7[:, 3:]], 1)
    for batch in padded_batches(used):
        value_B, _ = tracks.track_scores(track_E7[batch.event_B], batch, table)
        fits_EF[batch.event_B, _TRACK.stop] = value_B / batch.present_BL.sum(1)
    fits_EF[:, _CASCADE] = cascade_posteriors(pulses, fits_EF[:, 16:20])
    return fits_EF


def plain_lines(pulses: EventPulses) -> Tensor:
    """Return directions of the sources by LineFit without weights, the classical baseline. -> (E, 3) unit vectors."""
    return -_lines(pulses, reweightings=0).travel_E3


def _lines(pulses: EventPulses, **options: int) -> Lines:
    clean = pulses.of(trusted_pulses(pulses.clean_P, pulses.segments))
    return line_fits(clean.position_P3, clean.time_P, clean.segments, clean.geometry.medium, **options)


def _tracks(pulses: PaddedPulses, lines: Lines) -> Tensor:
    """Tracks of the largest likelihood of the times, as far apart as CANDIDATES_APART_RAD if enough are. (B, C, 7)."""
    tilt, sides = math.tan(START_TILT_RAD), tracks.across(lines.travel_E3)
    tilted = [F.normalize(lines.travel_E3 + sign * tilt * side, dim=1) for side in sides for sign in (1, -1)]
    everywhere = [travel_3.expand_as(lines.travel_E3) for travel_3 in sphere(START_DIRECTIONS)]
    starts_S = [lines.travel_E3, *tilted, *everywhere]
    copies = pulses.repeated(len(starts_S))
    state = tracks.track_state(torch.cat(starts_S), lines.point_E3.repeat(len(starts_S), 1), copies)
    state, value = _better(tracks.track_scores, tracks.moved_track, state, copies, [START_ROUND])
    state_SB7, value_SB, found = state.view(len(starts_S), -1, 7), value.view(len(starts_S), -1), []
    for _ in range(CANDIDATES):
        found.append(_best(state_SB7, value_SB))
        near_SB = (state_SB7[..., :3] * found[-1][:, :3]).sum(2) > math.cos(CANDIDATES_APART_RAD)
        value_SB = value_SB.masked_fill(near_SB, -torch.inf)
    return torch.stack(found, 1)


def _lit_tracks(pulses: EventPulses, tracks_EC7: Tensor) -> Tensor:
    """Tracks of a larger likelihood of all light: a few steps from each candidate, then on from the best. -> (E, 7)."""
    thinned, every_E = thinned_pulses(pulses, MOST_PULSES)
    found_E7, position_S3 = tracks_EC7[:, 0].clone(), torch.from_numpy(pulses.geometry.position_S3)

    def better(state: Tensor, batch: PaddedPulses, rounds: Iterable[tuple[float, int]]) -> tuple[Tensor, Tensor]:
        beside, share_B1 = tracks.sensors_beside(state, position_S3), 1 / every_E[batch.event_B, None]
        scores = partial(tracks.lit_track_scores, beside=beside, share_B1=share_B1)
        return _better(scores, tracks.moved_lit_track, state, batch, rounds)

    for batch in padded_batches(thinned, _PLACES):
        copies, start_C = batch.repeated(CANDIDATES), tracks_EC7[batch.event_B].unbind(1)
        state, value = better(tracks.lit_track(torch.cat(start_C), copies), copies, [CANDIDATES_ROUND])
        state, _ = better(_best(state.view(CANDIDATES, -1, 9), value.view(CANDIDATES, -1)), batch, LIT_ROUNDS)
        found_E7[batch.event_B] = state[:, :7]
    return found_E7


def _best(state_SBD: Tensor, value_SB: Tensor) -> Tensor:
    """State of the largest value of each event. -> (B, D)."""
    return state_SBD[value_SB.argmax(0), torch.arange(value_SB.shape[1])]


def _better(
    scores: Callable[..., tuple[Tensor, Tensor]],
    moved: Move,
    state: Tensor,
    pulses: PaddedPulses,
    rounds: Iterable[tuple[float, int]],
) -> tuple[Tensor, Tensor]:
    """Return states of larger likelihood, found with these jitters of the times, and their ln likelihood."""
    value = state[:, 0]
    for jitter_ns, steps in rounds:
        table = ln_density_table(jitter_ns, pulses.medium)
        state, value = maximise(state, partial(scores, pulses=pulses, table=table), moved, steps)
    return state, value


def _vertices(pulses: PaddedPulses) -> Tensor:
    """Position, time, ln likelihood a pulse. -> (B, 5)."""
    state, value = _better(vertex_scores, moved_vertex, vertex_state(pulses), pulses, VERTEX_ROUNDS)
    return torch.cat([state, (value / pulses.present_BL.sum(1)).unsqueeze(1)], 1)
