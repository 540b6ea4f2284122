"""Predicted events of a report, from the arrays of a sample and the predicted vectors.

E events, P pulses.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.unit_arrays import UnitArrays
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.metrics.predicted import PredictedEvents, unit_and_norm

_LINE, _TRACK = CLASSICAL_FITS.index("line_x"), CLASSICAL_FITS.index("track_x")


def predicted_events(arrays: UnitArrays, p_E3: npt.NDArray[np.float64]) -> PredictedEvents:
    """Events of the natural mixture: those that were added to enrich a training are left out."""
    columns = arrays.event_columns
    direction_E3, kappa_E = unit_and_norm(p_E3)
    fits_EF = np.asarray(columns["classical_fits"], np.float64)
    methods = {"line": fits_EF[:, _LINE : _LINE + 3], "pandel": fits_EF[:, _TRACK : _TRACK + 3]}
    baselines = {name: unit_and_norm(vector_E3)[0] for name, vector_E3 in methods.items()}
    events = PredictedEvents(
        direction_E3,
        kappa_E,
        unit_and_norm(np.asarray(columns["source_direction"], np.float64))[0],
        np.array(columns["topology"][:, 0], np.int8),
        np.array(columns["true_energy"][:, 0], np.float64),
        clean_sensors(arrays),
        {name: one for name, one in baselines.items() if np.isfinite(one).any()},
    )
    return events.take(~np.asarray(columns["enriched"][:, 0], np.bool_))


def clean_sensors(arrays: UnitArrays) -> npt.NDArray[np.int64]:
    """Sensors of each event with a pulse that is not auxiliary. (E,)."""
    num_events = len(arrays.offsets) - 1
    event_P = np.repeat(np.arange(num_events), np.diff(arrays.offsets))
    # Pulses are grouped by sensor: a number for each (event, sensor), in order.
    group_P = np.cumsum(arrays.particle_columns["opens_sensor"][:, 0])
    clean_P = ~np.asarray(arrays.particle_columns["auxiliary"][:, 0], np.bool_)
    _, first = np.unique(group_P[clean_P], return_index=True)
    return np.bincount(event_P[clean_P][first], minlength=num_events)
