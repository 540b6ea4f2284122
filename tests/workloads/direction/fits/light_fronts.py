"""Pulses of events for tests of the fits: direct light of tracks and point sources, and random ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base.segments import Segments
from workloads.direction.fits.pulses import EventPulses
from workloads.direction.geometry import hex_geometry
from workloads.direction.ice import CONE_DELAY_NS_M, LIGHT_SPEED_M_NS, POINT_DELAY_NS_M

POSITION_S3 = hex_geometry().position_S3.astype(np.float64)


def track_pulses(
    travel_3: npt.NDArray[np.float64], point_3: npt.NDArray[np.float64], most: int = 60
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float32]]:
    """Sensors of the toy array nearest to a track, in order, and the times of its direct light."""
    from_S3 = POSITION_S3 - point_3
    along_S = from_S3 @ travel_3
    rho_S = np.sqrt(np.maximum((from_S3**2).sum(1) - along_S**2, 0))
    sensor = np.sort(np.argsort(rho_S)[:most])
    time = along_S[sensor] / LIGHT_SPEED_M_NS + rho_S[sensor] * CONE_DELAY_NS_M
    return sensor.astype(np.int16), time.astype(np.float32)


def near_track(travel_3: Tensor, point_3: Tensor, num_pulses: int = 60) -> EventPulses:
    """Direct light at random places within 20 m of a track, 200 m before to 200 m behind a point, passed at 0."""
    generator = torch.Generator().manual_seed(num_pulses)
    along_P1 = 400 * torch.rand(num_pulses, 1, generator=generator) - 200
    across_P3 = torch.linalg.cross(_directions(num_pulses, generator), travel_3.expand(num_pulses, 3))
    rho_P1 = 2 + 18 * torch.rand(num_pulses, 1, generator=generator)
    across_P3 = across_P3 / across_P3.norm(dim=1, keepdim=True) * rho_P1
    time_P1 = along_P1 / LIGHT_SPEED_M_NS + rho_P1 * CONE_DELAY_NS_M
    return _one_event(point_3 + along_P1 * travel_3 + across_P3, time_P1.squeeze(1))


def near_point(point_3: Tensor, num_pulses: int = 40) -> EventPulses:
    """Direct light at random places within 25 m of a point source, emitted at 0."""
    generator = torch.Generator().manual_seed(num_pulses)
    distance_P1 = 5 + 20 * torch.rand(num_pulses, 1, generator=generator)
    position_P3 = point_3 + distance_P1 * _directions(num_pulses, generator)
    return _one_event(position_P3, distance_P1.squeeze(1) * POINT_DELAY_NS_M)


def _one_event(position_P3: Tensor, time_P: Tensor) -> EventPulses:
    segments = Segments.from_counts(torch.tensor([len(time_P)]), len(time_P))
    return EventPulses(
        position_P3, time_P, torch.ones_like(time_P), torch.ones_like(time_P, dtype=torch.bool), segments
    )


def _directions(number: int, generator: torch.Generator) -> Tensor:
    return F.normalize(torch.randn(number, 3, generator=generator), dim=1)


def random_pulses(counts: list[int], seed: int = 0, clean_share: float = 0.5) -> EventPulses:
    """Events of pulses anywhere in the array within 2 µs."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(counts)
    sensor_P = torch.randint(len(POSITION_S3), (total,), generator=generator)
    return EventPulses(
        torch.from_numpy(POSITION_S3).float()[sensor_P],
        2000 * torch.rand(total, generator=generator) - 1000,
        torch.rand(total, generator=generator) + 0.5,
        torch.rand(total, generator=generator) < clean_share,
        Segments.from_counts(torch.tensor(counts), total),
    )
