"""All metrics of predicted directions, with errors and floors. Pure.

E events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from workloads.base.random_streams import numpy_stream
from workloads.base.report.metric import Floor, Metric
from workloads.base.report.outcome import MetricReport
from workloads.direction.columns import CASCADE, TRACK
from workloads.direction.metrics.angles import Bool, azimuth_zenith_rad
from workloads.direction.metrics.calibration import calibrated, calibration
from workloads.direction.metrics.definitions import DEFINITIONS
from workloads.direction.metrics.predicted import PredictedEvents
from workloads.direction.metrics.resolution import resolutions
from workloads.direction.metrics.topology import confusion, track_auc
from workloads.direction.purposes import DirectionPurpose

CALIBRATED, POSTERIOR = "calibrated", "posterior"
"""Kinds of floors: of calibration alone, or of angles, too, by the simulator's own likelihood."""
_CALIBRATED_DRAWS = 20


def evaluate(
    events: PredictedEvents,
    *,
    bootstraps: int,
    seed: int,
    floors: Mapping[str, Floor] | None = None,
    progress: Callable[[float], None] = lambda part: None,
) -> MetricReport:
    """Report of all metrics. Errors: standard deviations over ``bootstraps`` draws of the events, with replacement.

    ``floors``: figures of the best possible prediction by name, where the events were simulated.
    ``progress``: called with the fraction that is done. Raises ValueError without events.
    """
    if not len(events):
        raise ValueError("no event to evaluate")
    usable_E = np.isfinite(events.angle_rad_E)
    used, chooses_E = events.take(usable_E), halves(len(events), seed)[usable_E]
    found = {"no_direction_share": float(1 - usable_E.mean())} | _figures(used, chooses_E)
    random = numpy_stream(DirectionPurpose.BOOTSTRAPS, seed)
    again: dict[str, list[float]] = {}
    for number in range(bootstraps if len(used) > 1 else 0):
        chosen = random.integers(0, len(used), len(used))
        for name, value in _figures(used.take(chosen), chooses_E[chosen]).items():
            again.setdefault(name, []).append(value)
        progress((number + 1) / bootstraps)
    told = [name for name in DEFINITIONS if np.isfinite(found.get(name, np.nan))]
    best = _floors(used, seed) | dict(floors or {})
    return MetricReport(
        metrics={name: _metric(name, found[name], again.get(name, []), best) for name in told},
        sizes={name: _number_of(events, topology) for name, topology in _SIZES.items()},
        floor_kind=POSTERIOR if floors else CALIBRATED,
        notes=tuple(_notes(events, used)),
    )


def halves(number: int, seed: int) -> Bool:
    """Mask of the random half of the events that choose thresholds; the others tell what these are worth."""
    order_E = numpy_stream(DirectionPurpose.HALVES, seed).permutation(number)
    chooses_E: Bool = order_E % 2 == 0
    return chooses_E


_SIZES = {"events": None, "tracks": TRACK, "cascades": CASCADE}


def _figures(events: PredictedEvents, chooses_E: Bool) -> dict[str, float]:
    if not len(events):
        return {}
    found = resolutions(events) | calibration(events.angle_rad_E, events.kappa_E)
    predicted, true = (azimuth_zenith_rad(one)[1] for one in (events.direction_E3, events.true_E3))
    found["zenith_bias_deg"] = float(np.degrees(predicted - true).mean())
    found["mean_direction_norm"] = float(np.linalg.norm(events.direction_E3.mean(0)))
    found["topology_auc"] = track_auc(events.kappa_E, events.topology_E)
    if (confused := confusion(events.kappa_E, events.topology_E, chooses_E)) is not None:
        found["topology_balanced_accuracy"] = confused.balanced_accuracy
    return found


def _floors(events: PredictedEvents, seed: int) -> dict[str, Floor]:
    found = {name: Floor(0.0, error=0.0) for name in ("zenith_bias_deg", "no_direction_share")}
    if len(events):
        found["mean_direction_norm"] = Floor(float(np.linalg.norm(events.true_E3.mean(0))), error=0.0)
        found |= calibrated(events.kappa_E, _CALIBRATED_DRAWS, numpy_stream(DirectionPurpose.CALIBRATED_ANGLES, seed))
    return found


def _number_of(events: PredictedEvents, topology: int | None) -> int:
    return int(events.of_kind(topology).sum())


def _notes(events: PredictedEvents, used: PredictedEvents) -> list[str]:
    notes = []
    if without := len(events) - len(used):
        notes.append(f"{without:,} events have no predicted direction (0, or not finite) and are in no other number")
    if unknown := len(events) - sum(_number_of(events, topology) for topology in (TRACK, CASCADE)):
        notes.append(f"{unknown:,} events are not known to be a track or a cascade: they count among all events only")
    for name, angle_deg_E in events.angles_deg().items():
        if name and (missing := int((~np.isfinite(angle_deg_E)).sum())):
            notes.append(
                f"{missing:,} events have no direction from the method {name!r}: its figures are of the others"
            )
    return notes


def _metric(name: str, value: float, again: list[float], floors: Mapping[str, Floor]) -> Metric:
    finite = np.array(again)[np.isfinite(again)] if again else np.zeros(0)
    error = float(finite.std(ddof=1)) if len(finite) > 1 else float("nan")
    return Metric.of(DEFINITIONS[name], value, error, floors.get(name, Floor()))
