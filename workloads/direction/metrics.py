"""Metrics of predicted directions, with errors and floors, and of energies. Pure.

E events, K values of κ, B bins of κ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import i0e
from scipy.stats import rankdata

from workloads.base.random_streams import Purpose, numpy_stream
from workloads.base.report.metric import Definition, Floor, Metric, bootstrap_error
from workloads.base.report.page import MetricReport
from workloads.direction.columns import CASCADE, TRACK
from workloads.direction.grouping import Bool, Float64


class DirectionPurpose(Purpose):
    """Uses of random numbers in the workload `direction`."""

    BOOTSTRAPS = "direction bootstraps"
    CALIBRATED_ANGLES = "direction calibrated angles"
    PICTURE_BOOTSTRAPS = "direction picture bootstraps"


def angles_rad(a_E3: Float64, b_E3: Float64) -> Float64:
    """Return angles between unit vectors, (E, 3), (E, 3) -> (E,), exact to 1e-15 at 0 and at π alike.

    2 atan2(|a - b|, |a + b|): W. Kahan, "How futile are mindless assessments of roundoff", section 12. The arccosine of
    the scalar product resolves nothing below 1e-8, and is NaN where rounding exceeds 1.
    """
    difference_E, sum_E = np.linalg.norm(a_E3 - b_E3, axis=1), np.linalg.norm(a_E3 + b_E3, axis=1)
    angle_E: Float64 = 2 * np.arctan2(difference_E, sum_E)
    return angle_E


def azimuth_zenith_rad(unit_E3: Float64) -> tuple[Float64, Float64]:
    """Return azimuth in [0, 2π) and zenith in [0, π] of unit vectors. (E, 3) -> (E,), (E,)."""
    x_E, y_E, z_E = unit_E3.T
    azimuth_E = np.arctan2(y_E, x_E) % (2 * np.pi)
    azimuth_E[azimuth_E >= 2 * np.pi] = 0.0  # the remainder of -1e-17
    return azimuth_E, np.arctan2(np.hypot(x_E, y_E), z_E)


KINDS = {"": None, "track_": TRACK, "cascade_": CASCADE}
"""Topology of the events, by the prefix of the names of their metrics; None: all events."""


def unit_and_norm(vector_E3: npt.NDArray[np.floating]) -> tuple[Float64, Float64]:
    """Return unit vectors and norms. Without a direction (norm 0 or not finite): NaN and 0. (E, 3) -> (E, 3), (E,)."""
    wide_E3 = vector_E3.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        norm_E = np.linalg.norm(wide_E3, axis=1)
    has_direction_E = np.isfinite(norm_E) & (norm_E > 0)
    unit_E3 = np.full(wide_E3.shape, np.nan)
    unit_E3[has_direction_E] = wide_E3[has_direction_E] / norm_E[has_direction_E, None]
    return unit_E3, np.where(has_direction_E, norm_E, 0.0)


@dataclass(frozen=True)
class PredictedEvents:
    """Events with a predicted direction, and what is known of each."""

    direction_E3: Float64
    """Predicted, unit vectors."""
    kappa_E: Float64
    """Predicted concentration, ≥ 0."""
    true_E3: Float64
    """True, unit vectors."""
    topology_E: npt.NDArray[np.int8]
    """TRACK, CASCADE or UNKNOWN."""
    energy_gev_E: Float64
    """0: unknown."""
    clean_sensors_E: npt.NDArray[np.int64]
    """Sensors with a pulse that is not auxiliary."""
    lg_energy_E2: Float64
    """Predicted lg(E / GeV) and its standard deviation; NaN: none."""
    baselines: dict[str, Float64] = field(default_factory=dict)
    """Directions that other methods find, by their names in the report: unit vectors (E, 3); NaN: none."""

    def __len__(self) -> int:
        return len(self.kappa_E)

    def take(self, chosen: npt.NDArray[np.integer] | Bool) -> PredictedEvents:
        """Return events by their indices, which may repeat, or by a mask."""
        columns = {one.name: getattr(self, one.name)[chosen] for one in fields(self) if one.name != "baselines"}
        return replace(self, **columns, baselines={name: one[chosen] for name, one in self.baselines.items()})

    @cached_property
    def angle_rad_E(self) -> Float64:
        """Angle between the predicted and the true direction."""
        return angles_rad(self.direction_E3, self.true_E3)

    @cached_property
    def lg_energy_true_E(self) -> Float64:
        """True lg(E / GeV); NaN: not known."""
        return np.log10(self.energy_gev_E, out=np.full(len(self), np.nan), where=self.energy_gev_E > 0)

    @cached_property
    def lg_energy_residual_E(self) -> Float64:
        """Predicted - true lg E; NaN where one of them is not known."""
        residual_E: Float64 = self.lg_energy_E2[:, 0] - self.lg_energy_true_E
        return residual_E

    def of_kind(self, topology: int | None) -> Bool:
        """Return a mask of the events of a topology; None: all."""
        return np.ones(len(self), np.bool_) if topology is None else self.topology_E == topology

    def angles_deg(self) -> dict[str, Float64]:
        """Return angles of the model (name "") and of each baseline from the true direction, (E,); NaN: none."""
        of_baselines = {name: np.degrees(angles_rad(one, self.true_E3)) for name, one in self.baselines.items()}
        return {"": np.degrees(self.angle_rad_E), **of_baselines}


# Von Mises-Fisher distribution on the sphere: p(θ) dΩ = κ / (4π sinh κ) exp(κ cos θ) dΩ. The functions hold for every
# κ ≥ 0: nothing overflows or cancels.

_SMALL = 1e-4
"""Values of κ below this: first terms of the series, whose error is of the order κ²."""


def mean_angle_rad(kappa_K: Float64) -> Float64:
    """Return the mean angle from the distribution's own direction. (K,) -> (K,).

    π (I0(κ) - exp(-κ)) / (2 sinh κ), by parts from the density; π/2 for κ = 0, about sqrt(π / (2κ)) for large κ. Both
    sides of the fraction are scaled by exp(-κ): I0(κ) itself overflows from 714 on.
    """
    twice_K = 2 * np.maximum(kappa_K, _SMALL)
    exact_K = np.pi * (i0e(twice_K / 2) - np.exp(-twice_K)) / -np.expm1(-twice_K)
    return np.where(kappa_K < _SMALL, np.pi / 2 * (1 - kappa_K / 4), exact_K)


def pull(kappa_K: Float64, angle_K: Float64) -> Float64:
    """Return 2κ (1 - cos θ), which follows χ²(2) for large κ: mean 2, median ln 4. (K,) -> (K,)."""
    found_K: Float64 = 4 * kappa_K * np.sin(angle_K / 2) ** 2
    return found_K


def negative_log_density(kappa_K: Float64, angle_K: Float64) -> Float64:
    """Return -ln p(θ), in a unit solid angle. (K,), (K,) -> (K,)."""
    found_K: Float64 = np.log(2 * np.pi) + _log_mean_exponential(kappa_K) + pull(kappa_K, angle_K) / 2
    return found_K


def drawn_angles_rad(kappa_K: Float64, random: np.random.Generator) -> Float64:
    """Return angles drawn from the distributions. (K,) -> (K,).

    1 - cos θ = -ln(1 - u (1 - exp(-2κ))) / κ with u uniform in [0, 1): inversion of its cumulative distribution.
    """
    u_K = random.random(len(kappa_K))
    at_least = np.maximum(kappa_K, _SMALL)
    versine_K = np.where(kappa_K < _SMALL, 2 * u_K, -np.log1p(u_K * np.expm1(-2 * at_least)) / at_least)
    angle_K: Float64 = 2 * np.arcsin(np.sqrt(np.clip(versine_K / 2, 0.0, 1.0)))
    return angle_K


def _log_mean_exponential(kappa_K: Float64) -> Float64:
    """Return ln((1 - exp(-2κ)) / κ), which is ln 2 for κ = 0."""
    at_least = np.maximum(kappa_K, _SMALL)
    exact_K: Float64 = np.log(-np.expm1(-2 * at_least) / at_least)
    return np.where(kappa_K < _SMALL, np.log(2) - kappa_K, exact_K)


FIGURES = {"angle_mean_deg": "mean", "angle_median_deg": "median", "angle_68_deg": "68 % quantile"}
"""Figures of angles, by the ends of the names of their metrics."""


def resolution(angle_deg_E: Float64) -> dict[str, float]:
    """Return mean, median and 68 % quantile, by the names of their metrics. Empty without events."""
    if not len(angle_deg_E):
        return {}
    values = (angle_deg_E.mean(), *np.quantile(angle_deg_E, [0.5, 0.68]))
    return dict(zip(FIGURES, map(float, values), strict=True))


def resolutions(events: PredictedEvents) -> dict[str, float]:
    """Return figures of the model and of each baseline for all events, tracks and cascades."""
    found: dict[str, float] = {}
    for source, angle_deg_E in events.angles_deg().items():
        known_E = np.isfinite(angle_deg_E)
        for prefix, topology in KINDS.items():
            figures = resolution(angle_deg_E[known_E & events.of_kind(topology)])
            found |= {f"{source}{'_' if source else ''}{prefix}{name}": value for name, value in figures.items()}
    return found


_MOST_BINS = 10
_EVENTS_OF_BIN = 20
"""Fewest events of a bin: the mean angle of 20 events is known to about 12 %."""
PULL_MEDIAN = float(np.log(4))
"""Median of χ² with two degrees of freedom."""


def _bins(kappa_E: Float64) -> list[npt.NDArray[np.int64]]:
    """Return indices of the events in bins of equal numbers by κ: deciles, fewer bins of fewer than 200 events."""
    number = max(min(len(kappa_E) // _EVENTS_OF_BIN, _MOST_BINS), 1)
    return np.array_split(np.argsort(kappa_E, kind="stable"), number)


def kappa_bins(angle_rad_E: Float64, kappa_E: Float64) -> tuple[Float64, Float64, Float64]:
    """Return median κ, mean angle (rad), and real / expected mean angle in deciles of κ. At least one event. (B,) each.

    Expected: of von Mises-Fisher distributions of these κ. A ratio above 1: the model is too sure of itself.
    """
    bins = _bins(kappa_E)
    kappa_B = np.array([np.median(kappa_E[chosen]) for chosen in bins])
    angle_B, expected_B = (
        np.array([of_E[chosen].mean() for chosen in bins]) for of_E in (angle_rad_E, mean_angle_rad(kappa_E))
    )
    return kappa_B, angle_B, angle_B / expected_B


def calibration(angle_rad_E: Float64, kappa_E: Float64) -> dict[str, float]:
    """Return figures of calibration by the names of their metrics. Empty without events."""
    if not len(kappa_E):
        return {}
    pull_E = pull(kappa_E, angle_rad_E)
    *_, ratio_B = kappa_bins(angle_rad_E, kappa_E)
    return {
        "kappa_pull_mean": float(pull_E.mean()),
        "kappa_pull_median_ratio": float(np.median(pull_E) / PULL_MEDIAN),
        "kappa_decile_lowest_ratio": float(ratio_B.min()),
        "kappa_decile_highest_ratio": float(ratio_B.max()),
        "kappa_nll_mean": float(negative_log_density(kappa_E, angle_rad_E).mean()),
    }


_WIDEST_LOG_SCALE = 7.0


def recalibrated_nll(angle_rad_E: Float64, kappa_E: Float64) -> float:
    """Return the mean -ln of the density if all κ of a decile are multiplied by what makes it smallest."""

    def nll(log_scale: float, bin_E: npt.NDArray[np.int64]) -> float:
        return float(negative_log_density(kappa_E[bin_E] * math.exp(log_scale), angle_rad_E[bin_E]).sum())

    limits = (-_WIDEST_LOG_SCALE, _WIDEST_LOG_SCALE)
    best = (minimize_scalar(nll, bounds=limits, args=(bin_E,), method="bounded").fun for bin_E in _bins(kappa_E))
    return float(sum(best) / len(kappa_E))


def calibrated(angle_rad_E: Float64, kappa_E: Float64, draws: int, random: np.random.Generator) -> dict[str, Floor]:
    """Return the same figures of a right model: angles drawn from its own distributions, mean over ``draws``.

    -ln of the density is smaller for a model that is too modest than for such angles, which are larger than its errors:
    its floor is that of the same errors with a right κ, plus what a right model would gain by chance.
    """
    many = []
    for _ in range(draws):
        angle_E = drawn_angles_rad(kappa_E, random)
        figures = calibration(angle_E, kappa_E)
        figures["kappa_nll_mean"] -= recalibrated_nll(angle_E, kappa_E)
        many.append(figures)
    floors = {}
    for name in many[0]:
        values = np.array([figures[name] for figures in many])
        floors[name] = Floor(float(values.mean()), error=float(values.std(ddof=1)) / math.sqrt(draws))
    gain = floors["kappa_nll_mean"]
    best = recalibrated_nll(angle_rad_E, kappa_E) + gain.value
    return floors | {"kappa_nll_mean": Floor(best, gain.error, spread=gain.error * math.sqrt(draws))}


# Tracks are separated from cascades by κ alone: they have more lever arm, so that a model is surer of them. The models
# have no output for the topology; a threshold on κ is the plain classifier that every one of them offers.


def roc_curve(kappa_E: Float64, topology_E: npt.NDArray[np.int8]) -> tuple[Float64, Float64] | None:
    """Return the ROC curve of κ; None unless there are both tracks and cascades.

    The shares of tracks and of cascades with κ above a threshold, from the highest threshold to the lowest.
    """
    is_track, is_cascade = topology_E == TRACK, topology_E == CASCADE
    if not (is_track.any() and is_cascade.any()):
        return None
    threshold = np.unique(kappa_E[is_track | is_cascade])[::-1]
    tracks, cascades = (
        1 - np.searchsorted(np.sort(kappa_E[chosen]), threshold, side="left") / chosen.sum()
        for chosen in (is_track, is_cascade)
    )
    return tracks, cascades


def track_auc(kappa_E: Float64, topology_E: npt.NDArray[np.int8]) -> float:
    """Return P(κ of a track > κ of a cascade), ties counted half; NaN unless there are both."""
    is_track, is_cascade = topology_E == TRACK, topology_E == CASCADE
    tracks, cascades = int(is_track.sum()), int(is_cascade.sum())
    if not (tracks and cascades):
        return float("nan")
    rank = rankdata(np.concatenate([kappa_E[is_track], kappa_E[is_cascade]]))[:tracks].sum()
    return float((rank - tracks * (tracks + 1) / 2) / (tracks * cascades))


_KIND_WORDS = {"": "all events", "track_": "tracks", "cascade_": "cascades"}

# ---- Energies.

_DECADES = range(9)
"""Decades of the true energy that have metrics, by the power of ten in GeV at which they begin."""
ENERGY_FIGURES = {
    "lg_energy_bias": ("dex", "zero", "mean of predicted - true lg E"),
    "lg_energy_rms": ("dex", "lower", "root mean square of predicted - true lg E"),
    "lg_energy_68": ("dex", "lower", "half the width of the central 68 % of predicted - true lg E"),
    "lg_energy_pull_mean": ("", "zero", "mean of (predicted - true lg E) / predicted error"),
    "lg_energy_pull_std": ("", "one", "standard deviation of (predicted - true lg E) / predicted error"),
}
"""Figures of energies, by the ends of the names of their metrics: unit, best value and meaning."""


def spread_68(values_E: Float64) -> float:
    """Return half the width of the central 68 % of the values. At least one."""
    low, high = np.quantile(values_E, [0.16, 0.84])
    return float(high - low) / 2


def energy_figures(events: PredictedEvents) -> dict[str, float]:
    """Return figures of predicted energies by the names of their metrics; empty where there are none."""
    residual_E, true_E = events.lg_energy_residual_E, events.lg_energy_true_E
    parts = {prefix: events.of_kind(topology) for prefix, topology in KINDS.items()}
    parts |= {f"decade_{decade}_": np.floor(true_E) == decade for decade in _DECADES}
    found: dict[str, float] = {}
    for prefix, mask_E in parts.items():
        known_E = mask_E & np.isfinite(residual_E)
        if not known_E.any():
            continue
        residual, pull = residual_E[known_E], residual_E[known_E] / events.lg_energy_E2[known_E, 1]
        values = (residual.mean(), np.sqrt(np.mean(residual**2)), spread_68(residual), pull.mean(), pull.std())
        found |= {f"{prefix}{name}": float(value) for name, value in zip(ENERGY_FIGURES, values, strict=True)}
    if found:
        found["lg_energy_true_std"] = float(true_E[np.isfinite(residual_E)].std())
    return found


BASELINES = {"line": "LineFit", "pandel": "Pandel fit of a track"}
"""Other methods, by how the names of metrics begin."""

_WHAT = "angle between predicted and true direction"

DEFINITIONS: Mapping[str, Definition] = {
    **{
        f"{prefix}{name}": Definition("°", "lower", f"{figure} of the {_WHAT}, {kind}")
        for prefix, kind in _KIND_WORDS.items()
        for name, figure in FIGURES.items()
    },
    "kappa_pull_mean": Definition("", "two", "mean of 2κ(1 - cos θ); above 2: the model is too sure of itself"),
    "kappa_pull_median_ratio": Definition("", "one", "median of 2κ(1 - cos θ) / ln 4, the median of χ²(2)"),
    **{
        f"kappa_decile_{end}_ratio": Definition("", "one", f"mean angle / that expected from κ, by decile: the {end}")
        for end in ("lowest", "highest")
    },
    "kappa_nll_mean": Definition("nat", "lower", "mean -ln of the predicted density at the true direction"),
    "zenith_bias_deg": Definition("°", "zero", "mean of the predicted - the true zenith"),
    "mean_direction_norm": Definition(
        "", "lower", "length of the mean predicted unit vector; 1: all events point one way; floor: the true one"
    ),
    "no_direction_share": Definition("", "lower", "events whose prediction is no direction: 0, or not finite"),
    "topology_auc": Definition("", "one", "κ as a sign of tracks: P(κ of a track > κ of a cascade)"),
    **{
        f"{source}_{prefix}{name}": Definition("°", "lower", f"for comparison, {method}: {figure}, {kind}")
        for source, method in BASELINES.items()
        for prefix, kind in _KIND_WORDS.items()
        for name, figure in FIGURES.items()
    },
    **{
        f"{prefix}{name}": Definition(unit, better, f"{meaning}, {part}")
        for prefix, part in (_KIND_WORDS | {f"decade_{lg}_": f"10^{lg} to 10^{lg + 1} GeV" for lg in _DECADES}).items()
        for name, (unit, better, meaning) in ENERGY_FIGURES.items()
    },
    "lg_energy_true_std": Definition("dex", "lower", "for comparison: rms of a model that knows the mean lg E alone"),
}


# ---- The report.

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
    """Return the report of all metrics. Errors are standard deviations over draws of the events with replacement.

    ``floors``: figures of the best possible prediction by name, where the events were simulated.
    ``progress``: called with the fraction that is done. Raises ValueError without events.
    """
    if not len(events):
        raise ValueError("no event to evaluate")
    usable_E = np.isfinite(events.angle_rad_E)
    used = events.take(usable_E)
    values = {"no_direction_share": float(1 - usable_E.mean())} | _figures(used)
    random = numpy_stream(DirectionPurpose.BOOTSTRAPS, seed)
    again: list[dict[str, float]] = []
    for number in range(bootstraps if len(used) > 1 else 0):
        chosen = random.integers(0, len(events), len(events))  # the same for every model of these events
        again.append(_figures(events.take(chosen[usable_E[chosen]])))
        progress((number + 1) / bootstraps)
    draws = {name: np.array([figures.get(name, math.nan) for figures in again]) for name in values}
    best = _floors(used, seed) | dict(floors or {})
    sizes = {"events": None, "tracks": TRACK, "cascades": CASCADE}
    return MetricReport(
        metrics={
            name: Metric.of(
                definition, values[name], bootstrap_error(draws[name]), best.get(name, Floor()), draws=draws[name]
            )
            for name, definition in DEFINITIONS.items()
            if np.isfinite(values.get(name, np.nan))
        },
        sizes={name: int(events.of_kind(topology).sum()) for name, topology in sizes.items()},
        floor_kind=POSTERIOR if floors else CALIBRATED,
        notes=tuple(_notes(events, used)),
    )


def _figures(events: PredictedEvents) -> dict[str, float]:
    if not len(events):
        return {}
    predicted_E, true_E = (azimuth_zenith_rad(unit_E3)[1] for unit_E3 in (events.direction_E3, events.true_E3))
    figures = resolutions(events) | calibration(events.angle_rad_E, events.kappa_E)
    figures["zenith_bias_deg"] = float(np.degrees(predicted_E - true_E).mean())
    figures["mean_direction_norm"] = float(np.linalg.norm(events.direction_E3.mean(0)))
    figures["topology_auc"] = track_auc(events.kappa_E, events.topology_E)
    return figures | energy_figures(events)


def _floors(events: PredictedEvents, seed: int) -> dict[str, Floor]:
    zero = ("zenith_bias_deg", "no_direction_share", "lg_energy_bias", "lg_energy_pull_mean")
    floors = {name: Floor(0.0, error=0.0) for name in zero}
    floors["lg_energy_pull_std"] = Floor(1.0, error=0.0)  # of all: parts that the truth chooses have other floors
    if len(events):
        floors["mean_direction_norm"] = Floor(float(np.linalg.norm(events.true_E3.mean(0))), error=0.0)
        random = numpy_stream(DirectionPurpose.CALIBRATED_ANGLES, seed)
        floors |= calibrated(events.angle_rad_E, events.kappa_E, _CALIBRATED_DRAWS, random)
    return floors


def _notes(events: PredictedEvents, used: PredictedEvents) -> Iterator[str]:
    if without := len(events) - len(used):
        yield f"{without:,} events have no predicted direction (0, or not finite) and are in no other number"
    if unknown := len(events) - int(np.isin(events.topology_E, (TRACK, CASCADE)).sum()):
        yield f"{unknown:,} events are not known to be a track or a cascade: they count among all events only"
    has_energy = np.isfinite(used.lg_energy_E2[:, 0]).any()
    if has_energy and (missing := int(np.isnan(used.lg_energy_residual_E).sum())):
        yield f"{missing:,} events have no predicted or no known energy: figures of lg E are of the others"
    for name, angle_deg_E in events.angles_deg().items():
        if name and (missing := int((~np.isfinite(angle_deg_E)).sum())):
            yield f"{missing:,} events have no direction from the method {name!r}: its figures are of the others"
