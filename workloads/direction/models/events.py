"""Input of the models: pulses, sensors and events of a part of a batch, packed without padding.

Shape suffixes: E events, T sensors that saw light in their event, S sensors of the detector, P pulses, F features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from common.errors import BadInputError
from workloads.base.batch import Microbatch
from workloads.base.segments import Segments, spread
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.reference_time import reference_times

_MIN_CHARGE_PE = 0.01
"""Smallest charge that is told from 0."""

_XY_FITS = [(number, number + 1) for number, name in enumerate(CLASSICAL_FITS) if name.endswith(("_x", "_x_m"))]
"""Places of the horizontal coordinates of all positions and directions among the classical fits."""


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
    num_without_fits: int = 0
    """Events with pulses whose classical fits were not computed."""

    @classmethod
    def from_microbatch(cls, microbatch: Microbatch, position_S3: Tensor) -> EventInput:
        """Events of a microbatch in a detector with sensors at ``position_S3``, m.

        Raises BadInputError for a sensor that has no position. Reads three numbers from the device, the number of
        sensors among them: the host waits once.
        """
        events, particles = microbatch.event_columns, microbatch.particle_columns
        offsets_E1, num_pulses = microbatch.offsets_E1, microbatch.num_particles
        opens_P, sensor_P = particles["opens_sensor"][:, 0], particles["sensor"][:, 0]
        fits_EF = events["classical_fits"]
        without_fits_E = (fits_EF == 0).all(1) & (offsets_E1.diff() > 0)
        opened_P1 = F.pad(opens_P.cumsum(0), (1, 0))
        largest = sensor_P.amax() if num_pulses else sensor_P.new_zeros(())
        told = torch.stack([opened_P1[-1], largest.long(), without_fits_E.sum()])
        num_sensors, largest_id, num_without_fits = told.tolist()
        if largest_id >= len(position_S3):
            raise BadInputError(
                f"a pulse is of sensor {largest_id}, and the sensor geometry has {len(position_S3)} sensors, from 0 on:"
                " name the geometry of these files"
            )
        first_T = torch.nonzero_static(opens_P, size=num_sensors).squeeze(1)
        end_T = F.pad(first_T[1:], (0, min(num_sensors, 1)), value=num_pulses)
        counts_T = end_T - first_T
        clean_P = ~particles["auxiliary"][:, 0]
        time_P, charge_P = particles["pulses"].unbind(1)
        reference_E = reference_times(time_P, clean_P, offsets_E1)
        of_event = Segments.from_offsets(offsets_E1, num_pulses)
        return cls(
            time_P=time_P - spread(reference_E.unsqueeze(1), of_event).squeeze(1),
            log10_charge_P=charge_P.clamp_min(_MIN_CHARGE_PE).log10(),
            auxiliary_P=~clean_P,
            pulses=Segments(opened_P1[1:] - 1, counts_T, first_T, counts_T, of_event.particles_P),
            position_T3=position_S3.index_select(0, sensor_P[first_T].long()),
            sensors=Segments.from_offsets(opened_P1[offsets_E1], num_sensors),
            source_direction_E3=events["source_direction"],
            fits_EF=fits_EF,
            enriched_E=events["enriched"][:, 0],
            num_without_fits=num_without_fits,
        )

    @property
    def num_events(self) -> int:
        """Events, empty ones included."""
        return self.sensors.num_events

    def turned(self, turn_E2: Tensor) -> EventInput:
        """Events mirrored (y → -y where the sign is -1), then rotated about z. ``turn_E2``: angle in rad, sign ±1.

        Positions, targets and the classical fits turn; times and charges are the same.
        """
        angle_E, sign_E = turn_E2.unbind(1)
        cosine_E, sine_E = angle_E.cos(), angle_E.sin()
        turn_E4 = torch.stack([cosine_E, -sine_E * sign_E, sine_E, cosine_E * sign_E], 1)
        fits_EF = self.fits_EF.clone()
        for x, y in _XY_FITS:
            fits_EF[:, x : y + 1] = _turned(self.fits_EF[:, x : y + 1], turn_E4)
        return replace(
            self,
            position_T3=_turned(self.position_T3, spread(turn_E4, self.sensors)),
            source_direction_E3=_turned(self.source_direction_E3, turn_E4),
            fits_EF=fits_EF,
        )


def _turned(vectors_N3: Tensor, turn_N4: Tensor) -> Tensor:
    """Vectors, of which x and y are multiplied by 2 × 2 matrices. (N, 2 or 3), (N, 4) -> as the vectors."""
    x_N1, y_N1, rest = vectors_N3[:, :1], vectors_N3[:, 1:2], vectors_N3[:, 2:]
    a_N1, b_N1, c_N1, d_N1 = turn_N4.split(1, 1)
    return torch.cat([a_N1 * x_N1 + b_N1 * y_N1, c_N1 * x_N1 + d_N1 * y_N1, rest], 1)
