"""All classical fits of events: the values of the column `classical_fits`.

The likelihood of a track has many maxima. So its fit starts from the line fit and from START_TILT_RAD away from it on
four sides, with a wide jitter of the times, which smooths the likelihood; the best two go on with less jitter, and the
better one is the result. Nothing is random: an event's fits depend on its pulses alone.

Events that tell little have finite values too. Without pulses: the direction straight up, all else 0. With pulses at
one place or one time the line stands still (speed 0) and points straight up, where the track's fit starts. Without a
clean pulse all its pulses count as clean.

E events, P pulses, S starts; of a batch: B events.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from common.errors import BadInputError
from workloads.base.segments import Segments
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.fits.line import Lines, line_fits
from workloads.direction.fits.maximise import maximise
from workloads.direction.fits.pandel import ln_density_table
from workloads.direction.fits.pulses import EventPulses, PaddedPulses, padded_batches, used_pulses
from workloads.direction.fits.track import across, moved_track, track_scores, track_state
from workloads.direction.fits.vertex import moved_vertex, vertex_scores, vertex_state
from workloads.direction.geometry import Geometry
from workloads.direction.reference_time import reference_times, trusted_pulses

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
) -> npt.NDArray[np.float32]:
    """Line, track and vertex of each event, as CLASSICAL_FITS. -> (E, 21).

    Event e owns the pulses offsets[e] to offsets[e + 1]; times in ns, charges in photo-electrons. Memory beside the
    result: that of _CHUNK_PULSES pulses, or of the largest event. Raises BadInputError for a sensor that the geometry
    lacks.
    """
    fits_E21 = np.zeros((len(offsets_E1) - 1, len(CLASSICAL_FITS)), np.float32)
    for first, end in _chunks(offsets_E1):
        pulses = event_pulses(sensor_P, time_P, charge_P, auxiliary_P, offsets_E1[first : end + 1], geometry)
        fits_E21[first:end] = fits_of(pulses).numpy()
    return fits_E21


def plain_line_fits(
    sensor_P: npt.NDArray[np.int16],
    time_P: npt.NDArray[np.float32],
    charge_P: npt.NDArray[np.float32],
    auxiliary_P: npt.NDArray[np.bool_],
    offsets_E1: npt.NDArray[np.int64],
    geometry: Geometry,
) -> npt.NDArray[np.float32]:
    """Directions of the sources by LineFit without weights, the classical baseline. -> (E, 3) unit vectors."""
    source_E3 = np.zeros((len(offsets_E1) - 1, 3), np.float32)
    for first, end in _chunks(offsets_E1):
        pulses = event_pulses(sensor_P, time_P, charge_P, auxiliary_P, offsets_E1[first : end + 1], geometry)
        source_E3[first:end] = -_lines(pulses, reweightings=0).travel_E3.numpy()
    return source_E3


def event_pulses(
    sensor_P: npt.NDArray[np.int16],
    time_P: npt.NDArray[np.float32],
    charge_P: npt.NDArray[np.float32],
    auxiliary_P: npt.NDArray[np.bool_],
    offsets_E1: npt.NDArray[np.int64],
    geometry: Geometry,
) -> EventPulses:
    """Pulses of the events offsets[0] to offsets[-1], at their sensors' places and relative to the reference times."""
    own = slice(int(offsets_E1[0]), int(offsets_E1[-1]))
    sensor_P, offsets = sensor_P[own], torch.from_numpy(offsets_E1 - offsets_E1[0])
    if len(sensor_P) and (sensor_P.min() < 0 or sensor_P.max() >= len(geometry)):
        wrong = sensor_P.max() if sensor_P.min() >= 0 else sensor_P.min()
        raise BadInputError(
            f"a pulse of sensor {wrong}, but the geometry has the sensors 0 to {len(geometry) - 1}: "
            "is it of another detector?"
        )
    time, clean = torch.from_numpy(time_P[own].copy()), torch.from_numpy(~auxiliary_P[own])
    segments = Segments.from_offsets(offsets, len(sensor_P))
    reference_E = reference_times(time, clean, offsets)
    return EventPulses(
        torch.from_numpy(geometry.position_S3[sensor_P]),
        time - reference_E[segments.event_P],
        torch.from_numpy(charge_P[own].copy()),
        clean,
        segments,
    )


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


def _lines(pulses: EventPulses, **options: int) -> Lines:
    clean = pulses.of(trusted_pulses(pulses.clean_P, pulses.segments))
    return line_fits(clean.position_P3, clean.time_P, clean.segments, **options)


def _tracks(pulses: PaddedPulses, lines: Lines) -> Tensor:
    """Direction of the source, point, time, ln likelihood a pulse. -> (B, 8)."""
    tilt, sides = math.tan(START_TILT_RAD), across(lines.travel_E3)
    tilted = [F.normalize(lines.travel_E3 + sign * tilt * side, dim=1) for side in sides for sign in (1, -1)]
    starts_S = [lines.travel_E3, *tilted]
    copies = pulses.repeated(len(starts_S))
    state = track_state(torch.cat(starts_S), lines.point_E3.repeat(len(starts_S), 1), copies)
    state, value = _better_track(state, copies, START_JITTER_NS, START_STEPS)
    state, value = _best(state, value, len(starts_S), TRACKS_KEPT)
    copies = pulses.repeated(TRACKS_KEPT)
    for jitter_ns in END_JITTERS_NS:
        state, value = _better_track(state, copies, jitter_ns, END_STEPS)
    state, value = _best(state, value, TRACKS_KEPT, 1)
    travel_B3, rest_B4 = state.split((3, 4), 1)
    return torch.cat([-travel_B3, rest_B4, (value / pulses.present_BL.sum(1)).unsqueeze(1)], 1)


def _better_track(state: Tensor, pulses: PaddedPulses, jitter_ns: float, steps: int) -> tuple[Tensor, Tensor]:
    scores = partial(track_scores, pulses=pulses, table=ln_density_table(jitter_ns))
    return maximise(state, scores, moved_track, steps)


def _best(state: Tensor, value: Tensor, starts: int, kept: int) -> tuple[Tensor, Tensor]:
    """The ``kept`` states of each event with the largest values, of (starts × B, 7) and (starts × B,)."""
    value_SB = value.view(starts, -1)
    best_SB = value_SB.argsort(dim=0, descending=True, stable=True)[:kept]
    state_SBD = state.view(*value_SB.shape, -1)
    state_SBD = state_SBD.gather(0, best_SB.unsqueeze(2).expand(-1, -1, state_SBD.shape[2]))
    return state_SBD.flatten(0, 1), value_SB.gather(0, best_SB).flatten()


def _vertices(pulses: PaddedPulses) -> Tensor:
    """Position, time, ln likelihood a pulse. -> (B, 5)."""
    state, value = _better_vertex(vertex_state(pulses), pulses, START_JITTER_NS, START_STEPS)
    for jitter_ns in END_JITTERS_NS:
        state, value = _better_vertex(state, pulses, jitter_ns, END_STEPS)
    return torch.cat([state, (value / pulses.present_BL.sum(1)).unsqueeze(1)], 1)


def _better_vertex(state: Tensor, pulses: PaddedPulses, jitter_ns: float, steps: int) -> tuple[Tensor, Tensor]:
    scores = partial(vertex_scores, pulses=pulses, table=ln_density_table(jitter_ns))
    return maximise(state, scores, moved_vertex, steps)


def _chunks(offsets_E1: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """First event and end of chunks of about _CHUNK_PULSES pulses, an event at least."""
    bounds, num_events = [0], len(offsets_E1) - 1
    while bounds[-1] < num_events:
        end = int(np.searchsorted(offsets_E1, offsets_E1[bounds[-1]] + _CHUNK_PULSES, side="right")) - 1
        bounds.append(min(max(end, bounds[-1] + 1), num_events))
    return list(pairwise(bounds))
