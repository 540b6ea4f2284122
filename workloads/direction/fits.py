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

E events, P pulses, F values, S starts; of a batch: B events, K parameters, D numbers of a state, L places for pulses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
from workloads.direction.cascades import cascade_posteriors
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.geometry import LIGHT_SPEED_M_NS, Geometry, Medium
from workloads.direction.light import (
    EventPulses,
    PaddedPulses,
    ln_density,
    ln_density_table,
    padded_batches,
    reference_times,
    segment_medians,
    trusted_pulses,
    used_pulses,
)

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
_LINE, _TRACK, _VERTEX, _CASCADE = slice(0, 8), slice(8, 16), slice(16, 21), slice(21, 26)


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
            time - reference_E[segments.event_P],
            torch.from_numpy(charge_P[own].copy()),
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
    fits_EF[:, 8:11] = -lines.travel_E3
    for batch in padded_batches(used_pulses(pulses)):
        lines_B = Lines(*(values[batch.event_B] for values in lines))
        fits_EF[batch.event_B, _TRACK] = _tracks(batch, lines_B)
        fits_EF[batch.event_B, _VERTEX] = _vertices(batch)
    fits_EF[:, _CASCADE] = cascade_posteriors(pulses, fits_EF[:, 16:20])
    return fits_EF


def plain_lines(pulses: EventPulses) -> Tensor:
    """Return directions of the sources by LineFit without weights, the classical baseline. -> (E, 3) unit vectors."""
    return -_lines(pulses, reweightings=0).travel_E3


def _lines(pulses: EventPulses, **options: int) -> Lines:
    clean = pulses.of(trusted_pulses(pulses.clean_P, pulses.segments))
    return line_fits(clean.position_P3, clean.time_P, clean.segments, clean.geometry.medium, **options)


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
