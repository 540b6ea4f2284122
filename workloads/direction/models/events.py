"""Input of the models: pulses, sensors and events of a part of a batch, packed without padding.

Shape suffixes: E events, T sensors that saw light in their event, P pulses, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workloads.base.segments import Segments


@dataclass(frozen=True)
class EventInput:
    """Events as a model sees them. Pulses of a sensor are contiguous and in order of time, as are sensors of an event.

    Times are relative to the event's reference time, the median time of its clean pulses (those that are not
    auxiliary; of all pulses if none is clean).
    """

    time_P: Tensor
    """(P,) float32, ns."""
    log10_charge_P: Tensor
    """(P,) float32, log10 of photo-electrons."""
    auxiliary_P: Tensor
    """(P,) bool."""
    pulses: Segments
    """Assignment of the P pulses to the T sensors."""
    position_T3: Tensor
    """(T, 3) float32, m."""
    sensors: Segments
    """Assignment of the T sensors to the E events."""
    source_direction_E3: Tensor
    """(E, 3) float32, the target: unit vectors that point to the source."""
    fits_EF: Tensor
    """(E, F) float32: `classical_fits`, fields in the order of workloads.direction.columns.CLASSICAL_FITS."""
    enriched_E: Tensor
    """(E,) bool."""
