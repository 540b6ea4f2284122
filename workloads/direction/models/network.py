"""The common part of all direction networks: detector, input, interface, loss, and prediction with them.

The input are pulses, sensors and events of a part of a batch, packed without padding, and the sensors of each event
that the networks see. A prediction is a raw vector p: the direction p / |p| with the concentration κ = |p| of a von
Mises-Fisher (vMF) distribution, the normal distribution of directions; and, where wanted, the energy: a normal
distribution of its decimal logarithm, lg(E / GeV).

Shape suffixes: E events, T sensors that saw light in their event, S sensors of the detector, P pulses, F features,
A sensors without a clean pulse, C others, N pairs of both.
"""

from __future__ import annotations

import glob
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.errors import BadInputError
from common.files.local import each_match, files_below, named_inputs, numbered
from common.paths import user_path
from workloads.base.batch import Microbatch
from workloads.base.device import most_particles
from workloads.base.segments import Segments, segment_max, segment_mean, segment_sum, spread, wide
from workloads.direction.columns import CLASSICAL_FITS, MOST_CHARGE_PE, MOST_NS
from workloads.direction.fits import classical_fits
from workloads.direction.geometry import GEOMETRY_FILE, ICE, Geometry, Medium, read_equal_geometries, read_geometry
from workloads.direction.light import first_of_events, nearest_distances, reference_times, trusted_pulses

# ---- The detector.


SEEN_EXTENT_M = 490.0
"""Extent that every detector has in the input of the networks, that of IceCube's array: its lengths and times are
multiplied by one factor, so that light is as fast, and features are about 1 in a small and in a large detector."""


class Detector(nn.Module):
    """Sensors and medium of a geometry, and how networks see them: buffers, no weights."""

    position_S3: Tensor
    """(S, 3) float32, m."""
    medium: Tensor
    """(5,) float64: the fields of a Medium."""
    view: Tensor
    """(4,) float64: the centre of what networks see, m, and the factor of lengths and times."""
    seen_S3: Tensor
    """Positions as networks see them. Not in a checkpoint, as what follows."""
    fits_2F: Tensor
    """Shift and factor with which the classical fits are seen so, too."""
    geometry: Geometry
    scale: float
    seen_medium: Medium

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.register_buffer("position_S3", torch.from_numpy(geometry.position_S3.copy()))
        self.register_buffer("medium", torch.tensor(astuple(geometry.medium), dtype=torch.float64))
        view = [*geometry.centre_m.tolist(), SEEN_EXTENT_M / geometry.extent_m]
        self.register_buffer("view", torch.tensor(view, dtype=torch.float64))
        self._see()

    def _see(self) -> None:
        """Set what follows from the buffers of a checkpoint."""
        self.geometry = Geometry(self.position_S3.cpu().numpy(), Medium(*self.medium.tolist()))
        *centre_3, self.scale = self.view.tolist()
        self.seen_medium = self.geometry.medium.scaled(self.scale)
        shifts = dict(zip(("x_m", "y_m", "z_m"), centre_3, strict=True))
        shift_F = torch.tensor([shifts.get(name[-3:], 0.0) for name in CLASSICAL_FITS])
        has_unit_F = [name.endswith(("_m", "_ns")) and not name.endswith("_m_ns") for name in CLASSICAL_FITS]
        factor_F = torch.tensor([self.scale if has_unit else 1.0 for has_unit in has_unit_F])
        seen_S3 = torch.from_numpy(((self.geometry.position_S3 - centre_3) * self.scale).astype(np.float32))
        for name, values in (("seen_S3", seen_S3), ("fits_2F", torch.stack([shift_F, factor_F]))):
            self.register_buffer(name, values.to(self.position_S3.device), persistent=False)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Load a checkpoint; an early one, without medium and view, is of ice and was trained with metres."""
        state_dict.setdefault(f"{prefix}medium", torch.tensor(astuple(ICE), dtype=torch.float64))
        state_dict.setdefault(f"{prefix}view", torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._see()

    @classmethod
    def of(cls, state: dict[str, Tensor]) -> Detector:
        """Detector of a checkpoint."""
        detector = cls(Geometry(state["position_S3"].cpu().numpy()))
        detector.load_state_dict(dict(state))
        return detector

    @classmethod
    def found(cls, configured: str, inputs: Sequence[str], section: str) -> Detector:
        """Detector of the file ``configured``, else of the GEOMETRY_FILE beside the local ones of the run's inputs.

        ``section``: of the setting `geometry`, for messages. Raises BadInputError if there is none, if it can't be
        read, or if the inputs have different ones.
        """
        places = [user_path(configured)] if configured else list(dict.fromkeys(_beside(inputs)))
        if not places:
            raise BadInputError(
                f"no {GEOMETRY_FILE} (positions of the sensors) beside the run's local inputs"
                f" ({', '.join(inputs)[:300] or 'none'}): copy it there, or set {section}.geometry to its path"
            )
        return cls(read_equal_geometries(places, "train on the files of one detector"))


def check_same_detector(geometry: Geometry, inputs: Sequence[str]) -> None:
    """Check that the GEOMETRY_FILEs beside local inputs, if there are any, are of a model's detector.

    Raises BadInputError: predictions of another detector's events would be wrong without any other sign of it.
    """
    for place in dict.fromkeys(_beside(inputs)):
        theirs = read_geometry(place)
        if not geometry.is_like(theirs):
            raise BadInputError(
                f"{place}: its {len(theirs)} sensors are not those of the {len(geometry)} that the model was"
                " trained with, by number, place and medium: use events of its detector, or import them again with its"
                f" geometry ({GEOMETRY_FILE}) beside the files"
            )


def _beside(inputs: Iterable[str]) -> Iterator[Path]:
    """Geometry files in the folders of the files of local inputs."""
    for text in named_inputs(numbered(inputs)):
        local = text.removeprefix("file://")
        if "://" in local:
            continue
        path = user_path(local).absolute()
        if path.is_dir():
            files = [path / GEOMETRY_FILE, *files_below(path)]
        else:
            files = [path] if path.exists() or not glob.has_magic(str(path)) else sorted(each_match(path))
        for folder in dict.fromkeys(file.parent for file in files):
            if (found := folder / GEOMETRY_FILE).is_file():
                yield found


# ---- Input.

_MIN_CHARGE_PE = 0.01
"""Smallest charge that is told from 0."""

_XY_FITS = [(number, number + 1) for number, name in enumerate(CLASSICAL_FITS) if name.endswith(("_x", "_x_m"))]
"""Places of the horizontal coordinates of all positions and directions among the classical fits."""


@dataclass(frozen=True)
class EventInput:
    """Events as a model sees them. Pulses of a sensor are contiguous and in order of time, as are sensors of an event.

    Times are relative to the event's reference time, the median time of its clean pulses (those that are not
    auxiliary; of all pulses if none is clean). Metres and nanoseconds are those of the Detector's `seen_S3`.
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
    medium: Medium
    num_without_fits: int = 0
    """Events with pulses whose classical fits were not computed."""

    @classmethod
    def from_microbatch(cls, microbatch: Microbatch, detector: Detector) -> EventInput:
        """Events of a microbatch in a detector.

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
        if largest_id >= len(detector.geometry):
            raise BadInputError(
                f"a pulse is of sensor {largest_id}, and the sensor geometry has {len(detector.geometry)} sensors,"
                " from 0 on: name the geometry of these files"
            )
        first_T = torch.nonzero_static(opens_P, size=num_sensors).squeeze(1)
        end_T = F.pad(first_T[1:], (0, min(num_sensors, 1)), value=num_pulses)
        counts_T = end_T - first_T
        clean_P = ~particles["auxiliary"][:, 0]
        time_P, charge_P = particles["pulses"].unbind(1)
        of_event = Segments.from_offsets(offsets_E1, num_pulses)
        time_P = time_P - spread(reference_times(time_P, clean_P, offsets_E1).unsqueeze(1), of_event).squeeze(1)
        shift_F, factor_F = detector.fits_2F
        return cls(
            time_P=time_P.clamp(-MOST_NS, MOST_NS) * detector.scale,
            log10_charge_P=charge_P.clamp(_MIN_CHARGE_PE, MOST_CHARGE_PE).log10(),
            auxiliary_P=~clean_P,
            pulses=Segments(opened_P1[1:] - 1, counts_T, first_T, counts_T, of_event.particles_P),
            position_T3=detector.seen_S3.index_select(0, sensor_P[first_T].long()),
            sensors=Segments.from_offsets(opened_P1[offsets_E1], num_sensors),
            source_direction_E3=events["source_direction"],
            fits_EF=(fits_EF - shift_F) * factor_F,
            enriched_E=events["enriched"][:, 0],
            medium=detector.seen_medium,
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


# ---- Sensors of an event that the networks see.


@dataclass(frozen=True)
class SensorSet:
    """Chosen sensors of events, with all pulses of a sensor merged. Times are relative to the event's reference."""

    chosen_T: Tensor
    """(T,) int64: their places among all sensors of the events."""
    position_T3: Tensor
    """m."""
    time_T1: Tensor
    """First clean pulse, else first pulse, ns."""
    log10_charge_T1: Tensor
    """Sum over the pulses, photo-electrons."""
    auxiliary_T1: Tensor
    """1 without a clean pulse, else 0."""
    median_T1: Tensor
    """Median (lower) of its pulses after `time`, ns."""
    last_T1: Tensor
    """Last pulse after `time`, ns."""
    mean_T1: Tensor
    """Mean of its pulses after `time`, ns."""
    ln_pulses_T1: Tensor
    segments: Segments
    """Assignment of the sensors to the events."""
    summary_E8: Tensor
    """Summary of each event, of all its sensors; see `_summary`."""
    medium: Medium


@dataclass(frozen=True)
class _Merged:
    """All sensors of events."""

    time_T: Tensor
    charge_T: Tensor
    clean_T: Tensor
    """(T,) bool: with a clean pulse; all sensors of an event without any."""
    auxiliary_T: Tensor
    median_T: Tensor
    last_T: Tensor
    mean_T: Tensor


@torch.no_grad()
def sensor_set(events: EventInput, max_sensors: int) -> SensorSet:
    """Return at most ``max_sensors`` sensors of each event: with clean pulses by charge, then others by their distance.

    Other sensors count if they are near a clean one in space and time, as light of the same particles is.
    """
    merged, sensors = _merged(events), events.sensors
    (auxiliary_A,) = (~merged.clean_T).nonzero(as_tuple=True)
    places = events.position_T3, merged.time_T, auxiliary_A, merged.clean_T
    distance_A = nearest_distances(*places, sensors, events.medium)
    score_T = (-1 - merged.charge_T.log1p()).index_copy(0, auxiliary_A, distance_A)
    (chosen,) = first_of_events(score_T, sensors, max_sensors).nonzero(as_tuple=True)
    counts_E = sensors.counts_E.clamp_max(max_sensors)
    columns = (
        *(merged.time_T, merged.charge_T.log10(), merged.auxiliary_T, merged.median_T, merged.last_T, merged.mean_T),
        events.pulses.counts_E.log(),
    )
    time, charge, auxiliary, median, last, mean, ln_pulses = torch.stack(columns, 1).index_select(0, chosen).split(1, 1)
    return SensorSet(
        chosen_T=chosen,
        position_T3=events.position_T3.index_select(0, chosen),
        time_T1=time,
        log10_charge_T1=charge,
        auxiliary_T1=auxiliary,
        median_T1=median - time,
        last_T1=last - time,
        mean_T1=mean - time,
        ln_pulses_T1=ln_pulses,
        segments=Segments.from_counts(counts_E, len(chosen)),
        summary_E8=_summary(events, merged),
        medium=events.medium,
    )


def _merged(events: EventInput) -> _Merged:
    """Sensors with their pulses merged."""
    pulses, sensors, num_pulses = events.pulses, events.sensors, len(events.time_P)
    clean_P = ~events.auxiliary_P
    if num_pulses == 0:
        none = events.time_P
        return _Merged(none, none, clean_P, none, none, none, none)
    place_P = torch.arange(num_pulses, device=clean_P.device)
    next_clean_P = torch.where(clean_P, place_P, num_pulses).flip(0).cummin(0).values.flip(0)
    first_clean_T = next_clean_P[pulses.starts_E]
    end_T = pulses.starts_E + pulses.counts_E
    hit_T = first_clean_T < end_T
    charge_T, time_T = segment_sum(torch.stack([10**events.log10_charge_P, events.time_P], 1), pulses).unbind(1)
    return _Merged(
        time_T=events.time_P[torch.where(hit_T, first_clean_T, pulses.starts_E)],
        charge_T=charge_T,
        clean_T=trusted_pulses(hit_T, sensors),
        auxiliary_T=(~hit_T).float(),
        median_T=events.time_P[pulses.starts_E + (pulses.counts_E - 1) // 2],
        last_T=events.time_P[end_T - 1],
        mean_T=time_T / pulses.counts_E,
    )


def _summary(events: EventInput, merged: _Merged) -> Tensor:
    """Summary of each event, finite also for an empty one. -> (E, 8).

    Logarithms of the numbers of sensors and of clean ones, and of the charge; logarithms of the three eigenvalues of
    the covariance of the clean sensors' positions, ascending; spread of their times; share of the brightest sensor.
    """
    sensors, clean_T1 = events.sensors, merged.clean_T.float().unsqueeze(1)
    charge_T1 = merged.charge_T.unsqueeze(1)
    place_T4 = torch.cat([events.position_T3, merged.time_T.unsqueeze(1)], 1)
    sums_E6 = segment_sum(torch.cat([clean_T1, place_T4 * clean_T1, charge_T1], 1), sensors)
    num_clean_E1, charge_E1 = sums_E6[:, :1].clamp_min(1), sums_E6[:, 5:]
    apart_T4 = (place_T4 - spread(sums_E6[:, 1:5] / num_clean_E1, sensors)) * clean_T1
    x_T, y_T, z_T, _ = apart_T4.unbind(1)
    products_T7 = torch.cat([apart_T4.square(), torch.stack([x_T * y_T, y_T * z_T, z_T * x_T], 1)], 1)
    products_E7 = segment_sum(products_T7, sensors) / num_clean_E1
    brightest_E1, _ = segment_max(charge_T1, sensors)
    eigenvalues_E3 = eigenvalues(products_E7[:, :3], products_E7[:, 4:])
    return torch.cat(
        [
            sensors.counts_E.clamp_min(1).log().unsqueeze(1),
            num_clean_E1.log(),
            charge_E1.clamp_min(1e-2).log(),
            (eigenvalues_E3.clamp_min(0) + 1).log() / 4 - 2,
            products_E7[:, 3:4].sqrt() / 500,
            (brightest_E1 / charge_E1.clamp_min(1e-2)).clamp_max(1),
        ],
        1,
    ) * (sensors.counts_E > 0).unsqueeze(1)


def eigenvalues(diagonal_E3: Tensor, beside_E3: Tensor) -> Tensor:
    """Eigenvalues of symmetric 3 × 3 matrices, ascending; ``beside``: elements xy, yz, zx. (E, 3), (E, 3) -> (E, 3).

    By trigonometry (Smith, Communications of the ACM 4, 168, 1961), in float64: torch's own waits for the device.
    """
    diagonal_E3, beside_E3 = diagonal_E3.double(), beside_E3.double()
    mean_E1 = diagonal_E3.mean(1, keepdim=True)
    a_E3 = diagonal_E3 - mean_E1
    scale_E1 = ((a_E3.square().sum(1, keepdim=True) + 2 * beside_E3.square().sum(1, keepdim=True)) / 6).sqrt()
    safe_E1 = scale_E1.clamp_min(1e-30)
    (x_E, y_E, z_E), (xy_E, yz_E, zx_E) = (a_E3 / safe_E1).unbind(1), (beside_E3 / safe_E1).unbind(1)
    half_determinant_E = (x_E * y_E * z_E + 2 * xy_E * yz_E * zx_E - x_E * yz_E**2 - y_E * zx_E**2 - z_E * xy_E**2) / 2
    angle_E1 = (half_determinant_E.clamp(-1, 1).acos() / 3).unsqueeze(1)
    largest_E1 = 2 * scale_E1 * angle_E1.cos()
    smallest_E1 = 2 * scale_E1 * (angle_E1 + 2 * math.pi / 3).cos()
    apart_E3 = torch.cat([smallest_E1, -largest_E1 - smallest_E1, largest_E1], 1)
    return (mean_E1 + apart_E3).float()


# ---- Networks, and prediction with them.

CPU_CHUNK_PULSES = 1 << 14
"""Pulses in one pass on a CPU, if not configured: about 250 events of a usual detector."""
LN_KAPPA = (-8.0, 16.0)
"""Bounds on the logarithm of a concentration: 16 is 0.02°. A kilometre of water knows tracks to 0.2°."""
_ENERGY_HIDDEN, _LG_ENERGY, _LN_ENERGY_ERROR = 64, 3.5, 4.0
"""Width of the layers that predict energies; lg(E / GeV) before training; bound on ln of its error: 0.018 to 55."""
_SERIES_BELOW = 0.5
"""κ below which the logarithm of sinh κ / κ is a series: its next term, κ¹⁰ / 467,775, is below 1e-8 there."""


@dataclass(frozen=True)
class Prediction:
    """Output of a network for the events of its input."""

    p_E3: Tensor
    """(E, 3): direction p / |p|, concentration |p| of a von Mises-Fisher distribution. Only natural events teach it."""
    auxiliary: tuple[Tensor, ...] = ()
    """Further predictions, each (E, 3), which learn from enriched events as well."""
    energy_E2: Tensor | None = None
    """(E, 2): mean of lg(E / GeV), and the natural logarithm of its standard deviation; None: no energy is predicted.
    Only natural events teach it."""

    @classmethod
    def joined(cls, parts: Sequence[Prediction]) -> Prediction:
        """Predictions of all parts of the events, in order, without auxiliary ones. There must be a part."""
        energies = [part.energy_E2 for part in parts if part.energy_E2 is not None]
        p_E3 = torch.cat([part.p_E3 for part in parts])
        return cls(p_E3, energy_E2=torch.cat(energies) if energies else None)


class DirectionNetwork(nn.Module, ABC):
    """Network of a direction model."""

    needs_fits: ClassVar[bool] = False
    """True if its input must have the classical fits of every event."""
    num_summary: int
    """Width of the vector of an event that its energy is predicted from."""

    def __init__(self) -> None:
        super().__init__()
        self.energy: nn.Sequential | None = None

    def add_energy(self) -> None:
        """Add the layers that predict energies; last, as their weights are drawn after all others."""
        self.energy = head(self.num_summary, _ENERGY_HIDDEN, 2)

    def energy_of(self, summary_EF: Tensor) -> Tensor | None:
        """Return Prediction.energy_E2 from the vector of each event, finite for any. (E, F) -> (E, 2) float32."""
        if self.energy is None:
            return None
        mean_E1, ln_error_E1 = self.energy(summary_EF).float().split(1, 1)
        bounded_E1 = _LN_ENERGY_ERROR * (ln_error_E1 / _LN_ENERGY_ERROR).tanh()  # no clamp, which ends the gradient
        return torch.cat([_LG_ENERGY + mean_E1, bounded_E1], 1)

    @abstractmethod
    def forward(self, events: EventInput) -> Prediction:
        """Predicted directions and energies; finite for events with any number of pulses, 0 included."""


@dataclass(frozen=True)
class Predictor:
    """Network and detector, without any state of a training."""

    network: DirectionNetwork
    detector: Detector
    precision: Callable[[], AbstractContextManager[object]]
    chunk_particles: int
    """Pulses in one pass; 0: depends on the device."""

    @property
    def has_energy(self) -> bool:
        """True if it predicts energies, too."""
        return self.network.energy is not None

    @torch.no_grad()
    def predict(self, microbatch: Microbatch) -> Prediction:
        """Prediction of the events, float32, without auxiliary ones.

        Classical fits that the network needs and the events lack are computed. Raises BadInputError for a pulse of a
        sensor that has no position.
        """
        most = most_particles(self.chunk_particles, self.detector.position_S3.device, CPU_CHUNK_PULSES)
        return Prediction.joined([self._of(part) for part in microbatch.chunks(most)])

    def _of(self, part: Microbatch) -> Prediction:
        if self.network.needs_fits:
            part = self._with_fits(part)
        # No network sees the target, and files to be predicted may have none.
        unknown = {"source_direction": self.detector.position_S3.new_zeros(part.num_events, 3)}
        part = replace(part, event_columns=unknown | part.event_columns)
        events = EventInput.from_microbatch(part, self.detector)
        with self.precision():
            prediction: Prediction = self.network(events)
        return replace(prediction, p_E3=prediction.p_E3.float())

    def _with_fits(self, part: Microbatch) -> Microbatch:
        """Events with their classical fits, which are computed on the host where there are none."""
        stored_EF = part.event_columns["classical_fits"]
        absent_E1 = (stored_EF == 0).all(1, keepdim=True)
        if not absent_E1.any():
            return part
        columns = part.particle_columns
        sensor_P, auxiliary_P = (columns[name][:, 0].cpu().numpy() for name in ("sensor", "auxiliary"))
        time_P, charge_P = columns["pulses"].cpu().numpy().T
        fits_EF = classical_fits(
            sensor_P, time_P, charge_P, auxiliary_P, part.host_offsets_E1.astype(np.int64), self.detector.geometry
        )
        computed_EF = torch.from_numpy(fits_EF).to(stored_EF.device)
        fits = {"classical_fits": torch.where(absent_E1, computed_EF, stored_EF)}
        return replace(part, event_columns=part.event_columns | fits)


# ---- Features.

FEATURE_LIMIT = 30.0
"""Bound on a feature, which is about 1: one extreme pulse, or a fit far off, must not blow up a batch."""
NUM_OF_WAVES = 16
"""Fourier features of each coordinate and time: sines and cosines of as many wavelengths each."""


def waves(values_PD: Tensor, shortest: float, longest: float) -> Tensor:
    """Sines and cosines at wavelengths from ``shortest`` to ``longest``, in the unit of the values. -> (P, 16 D)."""
    ln_K = torch.linspace(math.log(shortest), math.log(longest), NUM_OF_WAVES // 2, device=values_PD.device)
    phase_PDK = values_PD.unsqueeze(2) * (2 * math.pi * (-ln_K).exp())
    return torch.cat([phase_PDK.sin(), phase_PDK.cos()], 2).flatten(1)


def ln_light(log10_charge_T1: Tensor, distance_T1: Tensor, medium: Medium) -> Tensor:
    """Logarithm of the light that a source at these distances has sent, scaled to about 1. (T, 1), (T, 1) -> (T, 1)."""
    ln_light_T1 = log10_charge_T1 * math.log(10) + distance_T1 / medium.absorption_m + 1.5 * (distance_T1 / 3).log1p()
    return (ln_light_T1 - 8) / 3


def bounded(columns: list[Tensor]) -> Tensor:
    """Return features side by side, within FEATURE_LIMIT."""
    return torch.cat(columns, 1).clamp(-FEATURE_LIMIT, FEATURE_LIMIT)


def two_layers(num_inputs: int, width: int) -> nn.Sequential:
    """Return a network with an inner layer of 2 × ``width``."""
    return nn.Sequential(nn.Linear(num_inputs, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


def head(num_inputs: int, width: int, num_outputs: int) -> nn.Sequential:
    """Return a network for the outputs of an event, which are near 0 at the start: no direction is preferred."""
    layers = nn.Sequential(
        nn.LayerNorm(num_inputs), nn.Linear(num_inputs, width), nn.GELU(), nn.Linear(width, num_outputs)
    )
    nn.init.normal_(layers.get_parameter("3.weight"), std=0.01)
    nn.init.zeros_(layers.get_parameter("3.bias"))
    return layers


class Exchange(nn.Module):
    """EPiC layer (arXiv:2301.08128): the sensors of an event meet in its vector alone, at a linear cost."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.event_input = nn.Linear(3 * width, width)
        self.sensor_input = nn.Linear(width, 2 * width)
        self.condition = nn.Linear(width, 2 * width)
        self.output = nn.Linear(2 * width, width)

    def forward(self, sensors_TD: Tensor, event_ED: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
        """Updated sensors and event vectors."""
        normal_TD = self.norm(sensors_TD)
        event_ED = event_ED + F.gelu(self.event_input(torch.cat([event_ED, mean_and_max(normal_TD, segments)], 1)))
        inner_TD = F.gelu(self.sensor_input(normal_TD) + spread(self.condition(event_ED), segments))
        return sensors_TD + self.output(inner_TD), event_ED


def mean_and_max(values_PD: Tensor, segments: Segments) -> Tensor:
    """Mean and maximum over the rows of each segment, float32; 0 for an empty one. (P, D) -> (E, 2 D)."""
    values_PD = values_PD.float()
    return torch.cat([segment_mean(values_PD, segments), segment_max(values_PD, segments)[0]], 1)


# ---- Loss.


def vmf_loss(p_E3: Tensor, direction_E3: Tensor) -> Tensor:
    """Negative log-likelihood of true directions (unit vectors) under vMF distributions. (E, 3), (E, 3) -> (E,).

    -ln[κ exp(κ cos α) / (4π sinh κ)], Mardia and Jupp, Directional Statistics (2000), equation 9.3.4, with α the angle
    between both directions. Exact for every p, 0 included, and so is its gradient. At least float32.
    """
    p_E3 = wide(p_E3)
    direction_E3 = direction_E3.to(p_E3.dtype)
    small_E = p_E3.detach().square().sum(1) < _SERIES_BELOW**2
    # Small κ: a polynomial in p. |p| has no gradient at 0, and a clamp on it would have none below.
    near_E3 = torch.where(small_E.unsqueeze(1), p_E3, 0.0)
    x_E = near_E3.square().sum(1)
    ln_sinh_ratio_E = x_E * (1 / 6 - x_E * (1 / 180 - x_E * (1 / 2835 - x_E / 37800)))
    near_E = math.log(4 * math.pi) + ln_sinh_ratio_E - (near_E3 * direction_E3).sum(1)
    # Large κ: sinh κ = exp(κ) (1 - exp(-2κ)) / 2. κ (1 - cos α) as a square: κ - p · t would cancel.
    far_E3 = torch.where(small_E.unsqueeze(1), direction_E3, p_E3)
    kappa_E = torch.linalg.vector_norm(far_E3, dim=1)
    apart_E = (far_E3 / kappa_E.unsqueeze(1) - direction_E3).square().sum(1) / 2
    ln_norm_E = math.log(2 * math.pi) + torch.log1p(-torch.exp(-2 * kappa_E)) - torch.log(kappa_E)
    return torch.where(small_E, near_E, kappa_E * apart_E + ln_norm_E)


def energy_loss(energy_E2: Tensor, lg_energy_E: Tensor) -> Tensor:
    """Negative log-likelihood of true lg(E / GeV) under normal distributions, see Prediction. (E, 2), (E,) -> (E,)."""
    mean_E, ln_error_E = energy_E2.unbind(1)
    pull_E = (lg_energy_E - mean_E) * (-ln_error_E).exp()
    return pull_E.square() / 2 + ln_error_E + math.log(2 * math.pi) / 2


def angle_deg(p_E3: Tensor, direction_E3: Tensor) -> Tensor:
    """Angle between predicted and true directions (unit vectors), in degrees; 90 for p = 0. (E, 3), (E, 3) -> (E,).

    Kahan's form 2 atan2(|u - t|, |u + t|) is exact at all angles; the arc cosine isn't below 0.03° in float32, and
    has no gradient at 0. At least float32.
    """
    unit_E3 = unit_vectors(p_E3)
    direction_E3 = direction_E3.to(unit_E3.dtype)
    minus_E = torch.linalg.vector_norm(unit_E3 - direction_E3, dim=1)
    plus_E = torch.linalg.vector_norm(unit_E3 + direction_E3, dim=1)
    angle_E: Tensor = torch.rad2deg(2 * torch.atan2(minus_E, plus_E))
    return angle_E


def unit_vectors(p_E3: Tensor) -> Tensor:
    """Directions of vectors, 0 for a vector of 0. At least float32. (E, 3) -> (E, 3)."""
    p_E3 = wide(p_E3)
    length_E1: Tensor = torch.linalg.vector_norm(p_E3, dim=1, keepdim=True)
    return p_E3 / length_E1.clamp_min(torch.finfo(p_E3.dtype).tiny)
