"""Predicted events of a report, from the arrays of a sample and the predicted vectors.

E events, P pulses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from common.slow_progress import SlowProgress
from common.unit_arrays import UnitArrays
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.fits.classical import classical_fits, plain_line_fits
from workloads.direction.geometry import Geometry
from workloads.direction.metrics.angles import Bool, Float64
from workloads.direction.metrics.predicted import PredictedEvents, unit_and_norm

_TRACK = CLASSICAL_FITS.index("track_x")
_EVENTS_AT_A_TIME = 1000


def predicted_events(arrays: UnitArrays, p_E3: Float64, geometry: Geometry) -> PredictedEvents:
    """Events of the natural mixture: those that were added to enrich a training are left out."""
    natural_E = ~np.asarray(arrays.event_columns["enriched"][:, 0], np.bool_)
    arrays = only(arrays, natural_E)
    columns = arrays.event_columns
    direction_E3, kappa_E = unit_and_norm(p_E3[natural_E])
    return PredictedEvents(
        direction_E3,
        kappa_E,
        unit_and_norm(np.asarray(columns["source_direction"], np.float64))[0],
        np.array(columns["topology"][:, 0], np.int8),
        np.array(columns["true_energy"][:, 0], np.float64),
        clean_sensors(arrays),
        {
            "line": unit_and_norm(_fitted(plain_line_fits, arrays, geometry))[0],
            "pandel": unit_and_norm(_all_fits(arrays, geometry)[:, _TRACK : _TRACK + 3])[0],
        },
    )


def clean_sensors(arrays: UnitArrays) -> npt.NDArray[np.int64]:
    """Sensors of each event with a pulse that is not auxiliary. (E,)."""
    num_events = len(arrays.offsets) - 1
    event_P = np.repeat(np.arange(num_events), np.diff(arrays.offsets))
    # Pulses are grouped by sensor: a number for each (event, sensor), in order.
    group_P = np.cumsum(arrays.particle_columns["opens_sensor"][:, 0])
    clean_P = ~np.asarray(arrays.particle_columns["auxiliary"][:, 0], np.bool_)
    _, first = np.unique(group_P[clean_P], return_index=True)
    return np.bincount(event_P[clean_P][first], minlength=num_events)


def only(arrays: UnitArrays, chosen_E: Bool) -> UnitArrays:
    """The chosen events, copied; themselves if these are all."""
    if chosen_E.all():
        return arrays
    counts_E = np.diff(arrays.offsets)
    chosen_P = np.repeat(chosen_E, counts_E)
    return UnitArrays(
        np.concatenate([[0], np.cumsum(counts_E[chosen_E])]),
        np.array([0, int(chosen_E.sum())]),
        {name: column[chosen_P] for name, column in arrays.particle_columns.items()},
        {name: column[chosen_E] for name, column in arrays.event_columns.items()},
    )


def _all_fits(arrays: UnitArrays, geometry: Geometry) -> npt.NDArray[np.float32]:
    """Classical fits: those of the files, and new ones of events that have none there."""
    fits_EF = np.array(arrays.event_columns["classical_fits"], np.float32)
    missing = np.flatnonzero(~fits_EF.any(1))
    with SlowProgress("classical fits, which `icestream seeds` adds to files: events", len(missing)) as progress:
        for first in range(0, len(missing), _EVENTS_AT_A_TIME):
            events = missing[first : first + _EVENTS_AT_A_TIME]
            chosen_E = np.zeros(len(fits_EF), np.bool_)
            chosen_E[events] = True
            fits_EF[events] = _fitted(classical_fits, only(arrays, chosen_E), geometry)
            progress.advance(len(events))
    return fits_EF


def _fitted(
    fit: Callable[..., npt.NDArray[np.float32]], arrays: UnitArrays, geometry: Geometry
) -> npt.NDArray[np.float32]:
    """Results of a fit of all events."""
    columns = arrays.particle_columns
    time_P, charge_P = (np.ascontiguousarray(one) for one in np.asarray(columns["pulses"]).T)
    return fit(columns["sensor"][:, 0], time_P, charge_P, columns["auxiliary"][:, 0], arrays.offsets, geometry)
