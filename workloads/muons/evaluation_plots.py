"""The pictures of an evaluation of muons, in the order in which they are shown, and their frame.

Real and generated events, bootstraps of what is drawn, panels with a ratio below. Showers are assigned to groups; the
bootstrap draws sums over groups, so that a picture of a million muons takes one pass over them. E events, P muons, G
groups, D = 1 + bootstraps, X bins. Row 0 of every (D, X) array is the data itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from workloads.base.random_streams import numpy_stream
from workloads.base.report.evaluation import BLACK as REAL
from workloads.base.report.evaluation import MODELS, SERIES, Box, Gallery, grid
from workloads.muons.metrics.bundles import RADIUS_OFFSET_M, BundleArrays, Float64, Int64, Sample
from workloads.muons.metrics.distances import pair_distances, ratio
from workloads.muons.purposes import MuonPurpose

GROUPS = 200
BOOTSTRAPS = 200


class Groups:
    """Groups of whole showers, and the number of times that each is drawn."""

    def __init__(self, shower_E: Int64, weight_E: Float64 | None, seed: int) -> None:
        random = numpy_stream(MuonPurpose.PICTURE_BOOTSTRAPS, seed)
        showers, shower_of_E = np.unique(shower_E, return_inverse=True)
        self._num = max(min(GROUPS, len(showers)), 1)
        self._group_E = (random.permutation(len(showers)) % self._num)[shower_of_E.reshape(-1)]
        self._weight_E = np.ones(len(shower_E)) if weight_E is None else weight_E
        drawn = random.multinomial(self._num, np.full(self._num, 1 / self._num), BOOTSTRAPS)
        self._times_DG = np.concatenate([np.ones((1, self._num)), drawn])

    def sums(self, bins: Int64, num_bins: int, events: Int64, values: npt.ArrayLike = 1.0) -> Float64:
        """Return the sum of weight × value in each bin, (D, X). ``events``: those of the values. Bin -1: left out."""
        inside = (bins >= 0) & (bins < num_bins)
        events, bins = events[inside], bins[inside]
        weights = self._weight_E[events] * np.broadcast_to(values, inside.shape)[inside]
        flat = self._group_E[events] * num_bins + bins
        sums_GX = np.bincount(flat, weights, self._num * num_bins).reshape(self._num, num_bins)
        sums_DX: Float64 = self._times_DG @ sums_GX
        return sums_DX

    def means(self, bins: Int64, num_bins: int, events: Int64, values: Float64) -> Float64:
        """Return the weighted mean of the values in each bin, (D, X); NaN without any."""
        number = self.sums(bins, num_bins, events)
        return self.sums(bins, num_bins, events, values) / np.where(number > 0, number, np.nan)

    def histogram(self, values: Float64, edges: Float64, events: Int64) -> Float64:
        """Return the weight in each bin, (D, X)."""
        return self.sums(bins_of(values, edges), len(edges) - 1, events)

    @cached_property
    def num_events(self) -> Float64:
        """Weight of all events, (D, 1)."""
        return self.sums(np.zeros(len(self._group_E), np.int64), 1, np.arange(len(self._group_E)))


def bins_of(values: Float64, edges: Float64) -> Int64:
    """Return the index of the bin of each value, the last edge included; -1 outside."""
    index = np.searchsorted(edges, values, side="right") - 1
    index[values == edges[-1]] = len(edges) - 2
    return np.where(index >= len(edges) - 1, -1, index).astype(np.int64)


def band(values_DX: Float64) -> tuple[Float64, Float64, Float64]:
    """Return the value of the data, and one standard deviation of the bootstraps below and above it. (X,) each."""
    finite = np.where(np.isfinite(values_DX[1:]), values_DX[1:], np.nan)
    known = np.isfinite(finite).sum(0) > 1
    error = np.full(values_DX.shape[1], np.nan)
    error[known] = np.nanstd(finite[:, known], axis=0)
    return values_DX[0], values_DX[0] - error, values_DX[0] + error


_NAMES = {0.0: "γ", 1.0: "p", 4.0: "He", 14.0: "CNO", 27.0: "Mg–Si", 56.0: "Fe"}
_MOST_MASSES = 6


@dataclass(frozen=True)
class Generated:
    """Events of one model, and what else is drawn of it."""

    bundles: BundleArrays
    pit_E: Float64
    """The model's probability of fewer muons than each real event has; see workloads.muons.evaluation.pit."""


@dataclass(frozen=True)
class EventPairs:
    """Real events and those of one model or two; event i of all has primary i."""

    sample: Sample
    models: Mapping[str, Generated]
    """Generated events by the names of their runs."""
    seed: int = 0

    @property
    def sides(self) -> dict[str, BundleArrays]:
        """Real bundles, then those of each model, with their labels; a run's folder may be called "real"."""
        return {"real events": self.sample.bundles, **{name: model.bundles for name, model in self.models.items()}}

    @cached_property
    def groups(self) -> Groups:
        """Groups of showers, for the bootstrap bands."""
        return Groups(self.sample.shower_E, self.sample.weight_E, self.seed)

    def densities(
        self, values: Mapping[str, tuple[Float64, Int64]], edges: Float64, widths: Float64
    ) -> dict[str, Float64]:
        """Return the weight of each side's values in each bin, per event and width, (D, X); with the values' events."""
        return {
            name: self.groups.histogram(of, edges, at) / self.groups.num_events / widths
            for name, (of, at) in values.items()
        }

    @cached_property
    def energy_quarters(self) -> list[tuple[str, Int64]]:
        """Events in each quarter of the primary energies, with a label; fewer groups if energies coincide."""
        log_energy_E = np.log10(self.sample.primary_E4[:, 0])
        if log_energy_E.min() == log_energy_E.max():
            return [(f"lg($E_0$/GeV) = {log_energy_E[0]:.2f}", np.arange(len(log_energy_E)))]
        groups = _equal_groups(log_energy_E, 4)
        return [(f"lg($E_0$/GeV) {low:.2f} – {high:.2f}", events) for low, high, events in groups]

    @cached_property
    def masses(self) -> list[tuple[str, Int64]]:
        """Events of each mass number, with a label; many masses are put in six groups."""
        mass_E = self.sample.primary_E4[:, 2]
        masses = np.unique(mass_E).tolist()
        if len(masses) <= _MOST_MASSES:
            return [(_NAMES.get(mass, f"A = {mass:g}"), np.flatnonzero(mass_E == mass)) for mass in masses]
        return [(f"A {low:g} – {high:g}", events) for low, high, events in _equal_groups(mass_E, _MOST_MASSES)]


def even_edges(values: Float64, num_bins: int = 12) -> Float64:
    """Return edges of bins of equal width, of no more bins than there are different values."""
    low, high = values.min(), values.max()
    if high <= low:
        return np.array([low - 0.5, low + 0.5])
    return np.linspace(low, high, min(num_bins, max(len(np.unique(values)), 1)) + 1)


def _equal_groups(values: Float64, number: int) -> list[tuple[float, float, Int64]]:
    """Return limits and events of groups of about equal size; fewer of them if many values are equal."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, number + 1)))
    index_E = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return [(edges[i], edges[i + 1], np.flatnonzero(index_E == i)) for i in range(len(edges) - 1)]


_UPPER_PART = 0.75
_WELL_KNOWN = 0.5
"""Relative width of a ratio's band up to which the axis must show it."""


@dataclass(frozen=True)
class PanelAxes:
    """Two axes, one above the other, with a common x axis."""

    upper: Axes
    lower: Axes


def panels(columns: int, rows: int = 1, *, width: float, height: float = 5.2) -> tuple[Figure, list[PanelAxes]]:
    """Return a figure with ``columns`` × ``rows`` panels, row by row; width and height of a panel in inches."""
    figure, cells = grid(columns, rows, width=width, height=height)
    places = []
    for cell in cells:
        upper, lower = cell.inside().cut(_UPPER_PART)
        first = upper.axes(figure)
        first.tick_params(labelbottom=False)
        places.append(PanelAxes(first, lower.axes(figure, sharex=first)))
    return figure, places


def steps(axes: Axes, edges: Float64, draws_DX: Float64, *, color: str, label: str, linestyle: str = "-") -> None:
    """Draw a histogram with its bootstrap band."""
    value, low, high = band(draws_DX)
    # An empty bin has no point on a logarithmic axis.
    shown = np.where(value > 0, value, np.nan) if axes.get_yscale() == "log" else value
    axes.stairs(shown, edges, color=color, label=label, linewidth=1.5, linestyle=linestyle, baseline=None)
    if axes.get_yscale() == "log":
        low = np.maximum(low, 0.4 * value)  # a band that reaches 0 must not stretch the axis
    hidden = ~np.isfinite(low) | ~np.isfinite(shown)
    last_twice = [*range(len(shown)), len(shown) - 1]
    low, high = (np.where(hidden, np.nan, limit)[last_twice] for limit in (low, high))
    axes.fill_between(edges, low, high, step="post", color=color, alpha=0.25, linewidth=0)


def use_log_scale(axes: Axes, draws: Iterable[Float64]) -> None:
    """Set a logarithmic y axis, unless there is no value above 0."""
    if any((draws_DX[0] > 0).any() for draws_DX in draws):
        axes.set_yscale("log")


def points(axes: Axes, edges: Float64, draws_DX: Float64, *, color: str, label: str) -> None:
    """Draw values in bins as markers with errors."""
    value, low, high = band(draws_DX)
    shown = np.where(value > 0, value, np.nan)
    errors = np.array([np.minimum(shown - low, 0.6 * shown), high - shown])
    centres = (edges[1:] + edges[:-1]) / 2
    axes.errorbar(centres, shown, errors, fmt="o", color=color, markersize=4, linewidth=1.0, label=label)


def line(axes: Axes, edges: Float64, draws_DX: Float64, *, color: str, linestyle: str) -> None:
    """Draw values in bins as a line through the bin centres, with a band."""
    value, low, high = band(draws_DX)
    centres = (edges[1:] + edges[:-1]) / 2
    axes.plot(centres, np.where(value > 0, value, np.nan), color=color, linestyle=linestyle, linewidth=1.4)
    axes.fill_between(centres, np.maximum(low, 0.4 * value), high, color=color, alpha=0.2, linewidth=0)


def compare(
    place: PanelAxes,
    edges: Float64,
    sides: Mapping[str, Float64],
    *,
    x: str,
    y: str,
    title: str = "",
    log: bool = False,
    log_x: bool = False,
) -> None:
    """Draw distributions by label, real ones first, and generated / real below. ``x`` and ``y``: with units."""
    if log_x:
        place.upper.set_xscale("log")
    if log:
        use_log_scale(place.upper, sides.values())
    (label, real_DX), *models = sides.items()
    steps(place.upper, edges, real_DX, color=REAL, label=label)
    ratios = [ratio(generated_DX, real_DX) for _, generated_DX in models]  # fluctuations of common primaries cancel
    for (label, generated_DX), ratio_DX, (color, style) in zip(models, ratios, MODELS, strict=False):
        steps(place.upper, edges, generated_DX, color=color, label=label, linestyle=style)
        steps(place.lower, edges, ratio_DX, color=color, label="", linestyle=style)
    frame_ratio(place.lower, ratios)
    place.upper.legend()
    finish(place, x=x, y=y, title=title)


def finish(place: PanelAxes, *, x: str, y: str, title: str = "") -> None:
    """Add labels, with units."""
    place.lower.set_xlabel(x)
    place.upper.set(ylabel=y, title=title)
    for axes in (place.upper, place.lower):
        if axes.get_xscale() == "log":
            axes.xaxis.set_minor_formatter(NullFormatter())


def frame_ratio(axes: Axes, ratios: Sequence[Float64]) -> None:
    """Draw the line at 1; set limits that show the well-known ratios: ±20 % to a factor of 3."""
    reach = 0.2
    for ratio_DX in ratios:
        value, low, high = band(ratio_DX)
        known = np.isfinite(value) & (high - low < _WELL_KNOWN * value)
        reach = max(reach, 1.2 * float(np.max(np.abs(value[known] - 1), initial=0.0)))
    reach = min(reach, 2.0)
    axes.axhline(1.0, color="0.4", linewidth=0.9, zorder=0)
    axes.set(ylim=(max(1 - reach, 0.0), 1 + reach), ylabel="gen. / real")
    # Labels at the ends would touch those of the panel above and of the x axis.
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], prune="both"))


_MOST_COUNT_BINS = 14
"""Bins in a decade of the number of muons."""
_BINS = 40
_PER_DECADE = 10
_MOST_SHOWN = 0.9995
"""Fraction of the muons that a linear axis shows."""
_DARKEST = 1e-3
"""Density of the darkest colour of the plane, as a fraction of the largest."""
_FEW = 5.0
"""Fewest real muons in a cell of the plane for which its ratio is drawn."""
_PIT_BINS = 20
_OF_MODELS = ("-", "--")
"""Line styles where colours tell masses apart."""


GALLERY = Gallery[EventPairs]()


@GALLERY.picture(
    "counts", "Number of muons", "Probability of N muons in an event. Events without muons stand in the legend."
)
def counts(events: EventPairs) -> Figure:
    figure, places = panels(1, width=7.0)
    _counts(places[0], events, np.arange(len(events.sample)), "")
    return figure


@GALLERY.picture(
    "counts-by-energy",
    "Number of muons, by primary energy",
    "The same in four quarters of the primary energies: marginal distributions can hide errors that cancel.",
)
def counts_by_energy(events: EventPairs) -> Figure:
    quarters = events.energy_quarters
    figure, places = panels(2, -(-len(quarters) // 2), width=5.6, height=4.6)
    for place, (label, chosen) in zip(places, quarters, strict=False):
        _counts(place, events, chosen, label)
    for place in places[len(quarters) :]:  # energies coincide
        place.upper.set_visible(False)
        place.lower.set_visible(False)
    return figure


def _counts(place: PanelAxes, events: EventPairs, chosen: Int64, title: str) -> None:
    most = max(int(side.counts_E[chosen].max(initial=1)) for side in events.sides.values())
    edges = count_edges(most)
    of_all = events.groups.sums(np.zeros(len(chosen), np.int64), 1, chosen)
    densities = {}
    for name, side in events.sides.items():
        counts_C = side.counts_E[chosen].astype(np.float64)
        empty = ratio(events.groups.sums(np.where(counts_C == 0, 0, -1), 1, chosen), of_all)[0, 0]
        histogram = events.groups.histogram(counts_C, edges, chosen)
        densities[f"{name}, P(N = 0) = {empty:.3f}"] = ratio(histogram, of_all) / np.diff(edges)
    compare(place, edges, densities, x="number of muons N", y="probability P(N)", title=title, log=True, log_x=True)


def count_edges(most: int) -> Float64:
    """Return bin edges between integers: one integer a bin at first, then a number of bins a decade."""
    number = max(int(_MOST_COUNT_BINS * np.log10(most + 1)), 2)
    edges: Float64 = np.unique(np.round(np.geomspace(1, most + 1, number))) - 0.5
    return edges


@GALLERY.picture(
    "counts-mean",
    "Mean and spread of the number of muons",
    "Against the primary energy, for each mass number. A deterministic count would show in the spread.",
)
def mean_and_spread(events: EventPairs) -> Figure:
    figure, (of_mean, of_spread) = panels(2, width=6.2)
    edges = even_edges(np.log10(events.sample.primary_E4[:, 0]))
    for place, power in ((of_mean, 1), (of_spread, 2)):
        ratios = []
        of_masses = [
            [_moment(events, side, chosen, edges, power) for side in events.sides.values()]
            for _, chosen in events.masses
        ]
        use_log_scale(place.upper, [draws_DX for sides in of_masses for draws_DX in sides])
        for color, (label, _), (real, *generated) in zip(SERIES, events.masses, of_masses, strict=False):
            points(place.upper, edges, real, color=color, label=label)
            for of_model, style in zip(generated, _OF_MODELS, strict=False):
                line(place.upper, edges, of_model, color=color, linestyle=style)
                ratios.append(ratio(of_model, real))
                line(place.lower, edges, ratios[-1], color=color, linestyle=style)
        frame_ratio(place.lower, ratios)
    of_mean.upper.plot([], [], color="0.3", linestyle="", marker="o", markersize=4, label="real events")
    for name, style in zip(events.models, _OF_MODELS, strict=False):
        of_mean.upper.plot([], [], color="0.3", linestyle=style, label=name)
    of_mean.upper.legend(ncols=2)
    finish(of_mean, x="lg($E_0$ / GeV)", y="mean number of muons ⟨N⟩")
    finish(of_spread, x="lg($E_0$ / GeV)", y="standard deviation of N")
    return figure


def _moment(events: EventPairs, side: BundleArrays, chosen: Int64, edges: Float64, power: int) -> Float64:
    """Return the mean (power 1) or standard deviation (2) of N in bins of lg E0. (D, X)."""
    bins = bins_of(np.log10(events.sample.primary_E4[chosen, 0]), edges)
    counts_C = side.counts_E[chosen].astype(np.float64)
    mean = events.groups.means(bins, len(edges) - 1, chosen, counts_C)
    if power == 1:
        return mean
    square = events.groups.means(bins, len(edges) - 1, chosen, counts_C**2)
    return np.sqrt(np.maximum(square - mean**2, 0.0))


@GALLERY.picture("empty-by-depth", "Events without muons", "Fraction of the events that have no muon at their depth.")
def empty_by_depth(events: EventPairs) -> Figure:
    figure, (place,) = panels(1, width=7.0)
    depth_E = events.sample.primary_E4[:, 3]
    edges = even_edges(depth_E)
    everyone = np.arange(len(depth_E))
    all_DX = events.groups.histogram(depth_E, edges, everyone)
    shares = {
        name: events.groups.histogram(depth_E[side.counts_E == 0], edges, everyone[side.counts_E == 0])
        / np.where(all_DX > 0, all_DX, np.nan)
        for name, side in events.sides.items()
    }
    compare(place, edges, shares, x="vertical depth / m", y="P(N = 0)")
    place.upper.set_ylim(bottom=0)
    return figure


@GALLERY.picture("energy", "Muon energies", "Spectrum of all muons at depth, E dN/dE.")
def spectrum(events: EventPairs) -> Figure:
    figure, (place,) = panels(1, width=7.0)
    edges = _decades(np.concatenate([side.energy_gev_P for side in events.sides.values()]))
    muons = {name: (side.energy_gev_P, side.event_P) for name, side in events.sides.items()}
    densities = events.densities(muons, edges, np.diff(np.log(edges)))
    compare(place, edges, densities, x="muon energy at depth E / GeV", y="E dN/dE per event", log=True, log_x=True)
    return figure


@GALLERY.picture(
    "bundle-energy",
    "Leading muon and bundle",
    "Energy of an event's most energetic muon, and of all its muons together.",
)
def bundle_energies(events: EventPairs) -> Figure:
    figure, places = panels(2, width=6.2)
    for place, name, x in (
        (places[0], "log10_leading_energy", "energy of the leading muon / GeV"),
        (places[1], "log10_bundle_energy", "energy of the bundle / GeV"),
    ):
        values = {label: (10 ** side.features[name].values, side.filled_F) for label, side in events.sides.items()}
        edges = _decades(np.concatenate([energy for energy, _ in values.values()]))
        densities = events.densities(values, edges, np.diff(np.log10(edges)))
        compare(place, edges, densities, x=x, y="events per decade, fraction of all", log=True, log_x=True)
    return figure


def _decades(energy_gev: Float64) -> Float64:
    """Return bins of equal width in lg E, without the outermost energies, too few for a distribution."""
    low, high = np.log10(_range(energy_gev, 1e-5))
    return 10 ** np.linspace(low, max(high, low + 0.1), max(int(_PER_DECADE * (high - low)), 2) + 1)


@GALLERY.picture(
    "radius", "Distances to the shower axis", "Muons per metre of distance, and per area in the plane across the axis."
)
def radii(events: EventPairs) -> Figure:
    figure, (linear, density) = panels(2, width=6.2)
    muons = {name: (side.radius_m_P, side.event_P) for name, side in events.sides.items()}
    all_P = np.concatenate([radius_m_P for radius_m_P, _ in muons.values()])
    x = "distance to the axis r / m"
    edges = np.linspace(0.0, _far(all_P), _BINS + 1)
    compare(linear, edges, events.densities(muons, edges, np.diff(edges)), x=x, y="dN/dr per event / m⁻¹", log=True)
    edges = np.geomspace(max(_range(all_P, 0.001)[0], 1e-2), _far(all_P), _BINS + 1)
    densities = events.densities(muons, edges, np.diff(edges**2))
    compare(density, edges, densities, x=x, y="dN/dr² per event / m⁻²", log=True, log_x=True)
    return figure


@GALLERY.picture(
    "radius-and-energy",
    "Energy and distance",
    "Mean distance of muons of an energy, and mean energy at a distance: fast muons stay near the axis.",
)
def radius_and_energy(events: EventPairs) -> Figure:
    figure, (of_radius, of_energy) = panels(2, width=6.2)
    energies = [side.energy_gev_P for side in events.sides.values()]
    distances = [side.radius_m_P for side in events.sides.values()]
    for place, at, values, x, y, log in (
        (of_radius, energies, distances, "muon energy at depth E / GeV", "mean distance to the axis ⟨r⟩ / m", False),
        (of_energy, distances, energies, "distance to the axis r / m", "mean muon energy ⟨E⟩ / GeV", True),
    ):
        low, high = _range(np.concatenate(at), 0.001)
        edges = np.geomspace(max(low, 1e-3), max(high, 1.01 * low, 1.01e-3), 21)
        means = {
            name: events.groups.means(bins_of(at_P, edges), len(edges) - 1, side.event_P, values_P)
            for (name, side), at_P, values_P in zip(events.sides.items(), at, values, strict=True)
        }
        compare(place, edges, means, x=x, y=y, log=log, log_x=True)
    return figure


@GALLERY.picture(
    "decoherence",
    "Decoherence curve",
    "Distances between two muons of an event; up to 50 random pairs of each event, which weigh 1 together.",
)
def decoherence(events: EventPairs) -> Figure:
    """Draw distances between two muons of an event. The weights of an event's pairs sum to 1."""
    figure, (place,) = panels(1, width=7.0)
    pairs = {
        name: pair_distances(
            side,
            numpy_stream(MuonPurpose.PAIRS_GENERATED if name in events.models else MuonPurpose.PAIRS_REAL, events.seed),
        )
        for name, side in events.sides.items()
    }
    edges = np.linspace(0.0, _far(np.concatenate([distance_Q for distance_Q, _ in pairs.values()])), _BINS + 1)
    densities = {
        name: events.groups.sums(bins_of(distance_Q, edges), _BINS, event_Q, 1.0 / np.bincount(event_Q)[event_Q])
        / events.groups.num_events
        / np.diff(edges)
        for name, (distance_Q, event_Q) in pairs.items()
    }
    compare(place, edges, densities, x="distance between two muons D / m", y="pairs per event / m⁻¹", log=True)
    return figure


def _far(metres: Float64) -> float:
    return float(np.quantile(metres, _MOST_SHOWN)) if len(metres) else 1.0


def _range(values: Float64, left_out: float) -> tuple[float, float]:
    """Return the range of the values without a share of them on each side; of none 0.1 to 1."""
    low, high = np.quantile(values, [left_out, 1 - left_out]) if len(values) else (0.1, 1.0)
    return float(low), float(high)


@GALLERY.picture(
    "energy-radius-plane",
    "Energy and distance together",
    "Fraction of the muons in each cell of the plane, and the ratio.",
)
def energy_and_radius(events: EventPairs) -> Figure:
    x_edges, y_edges = (
        np.linspace(low, max(high, low + 0.1), _BINS + 1)
        for low, high in (
            _range(np.concatenate([side.features[name].values for side in events.sides.values()]), 0.0005)
            for name in ("log10_energy", "log10_radius")
        )
    )
    real, *generated = (_density(events, side, x_edges, y_edges) for side in events.sides.values())
    most = max(density.max() for density in (real, *generated))
    norm = LogNorm(most * _DARKEST, most) if most > 0 else LogNorm(_DARKEST, 1.0)
    figure, rows = grid(1, len(generated), width=16.6, height=4.9)
    for row, name, of_model in zip(rows, events.models, generated, strict=True):
        places = [Box(left, row.bottom + 0.6, 4.3, 3.95).axes(figure) for left in (0.9, 5.5, 11.2)]
        bars = [Box(left, row.bottom + 0.6, 0.2, 3.95).axes(figure) for left in (9.95, 15.65)]
        for axes, values, title in zip(places, (real, of_model), ("real events", name), strict=False):
            mesh = axes.pcolormesh(x_edges, y_edges, np.where(values > 0, values, np.nan).T, norm=norm, cmap="viridis")
            axes.set_title(title)
        figure.colorbar(mesh, cax=bars[0], label="fraction of muons per cell")
        ratio_XY = np.full(real.shape, np.nan)
        np.divide(of_model, real, out=ratio_XY, where=real * len(events.sample.bundles.event_P) >= _FEW)
        mesh = places[2].pcolormesh(x_edges, y_edges, ratio_XY.T, norm=LogNorm(0.5, 2.0), cmap="PuOr_r")
        ticks = [0.5, 0.7, 1.0, 1.4, 2.0]
        bar = figure.colorbar(mesh, cax=bars[1], label=f"{name} / real", extend="both", ticks=ticks)
        bar.ax.set_yticklabels([f"{tick:g}" for tick in ticks])
        bar.ax.minorticks_off()
        places[2].set_title(f"ratio, where {_FEW:g} real muons or more are")
        places[1].tick_params(labelleft=False)
        for axes in places:
            axes.set_xlabel("lg(E / GeV)")
        places[0].set_ylabel(f"lg(r / m + {RADIUS_OFFSET_M:g})")
    return figure


def _density(events: EventPairs, side: BundleArrays, x_edges: Float64, y_edges: Float64) -> Float64:
    weight_E = events.sample.weight_E
    weights = None if weight_E is None else weight_E[side.event_P]
    energy_P, radius_P = (side.features[name].values for name in ("log10_energy", "log10_radius"))
    number = np.histogram2d(energy_P, radius_P, bins=(x_edges, y_edges), weights=weights)[0]
    density: Float64 = number / max(number.sum(), 1e-300)
    return density


@GALLERY.picture(
    "reliability",
    "Reliability of the count model",
    "Where each real count lies in the model's distribution for its primary (probability integral transform): "
    "flat if the model is right. A slope is a bias, a ∪ too little spread, a ∩ too much. Right: how far the "
    "cumulative distribution is off.",
)
def reliability(events: EventPairs) -> Figure:
    """Draw histogram and CDF of the probability integral transform of the real counts: uniform for a right model."""
    figure, _ = grid(1, 1, width=13.0, height=4.6)
    left, right = (Box(6.7 * place, 0.0, 6.2, 4.6).inside().axes(figure) for place in range(2))
    edges = np.linspace(0.0, 1.0, _PIT_BINS + 1)
    left.axhline(1.0, color="0.4", linewidth=0.9, label="a right model")
    right.axhline(0.0, color="0.4", linewidth=0.9)
    reach, reach_right = 0.05, 0.01
    for (name, model), (color, style) in zip(events.models.items(), MODELS, strict=False):
        counts_DX = events.groups.histogram(model.pit_E, edges, np.arange(len(model.pit_E)))
        density_DX = counts_DX / events.groups.num_events * _PIT_BINS
        steps(left, edges, density_DX, color=color, label=name, linestyle=style)
        reach = max(reach, *(1.1 * float(np.nanmax(np.abs(limit - 1), initial=0.0)) for limit in band(density_DX)))
        deviation = np.cumsum(counts_DX, axis=1) / events.groups.num_events - edges[1:]
        error = deviation[1:].std(0)
        right.errorbar(edges[1:], deviation[0], error, fmt=f"o{style}", color=color, markersize=4, capsize=2)
        reach_right = max(reach_right, 1.3 * float(np.abs(deviation[0]).max() + error.max()))
    left.set(ylim=(max(1 - reach, 0.0), 1 + reach), ylabel="density")
    left.legend(loc="lower center")
    right.set(ylim=(-reach_right, reach_right), ylabel="cumulative part − u")
    for axes in (left, right):
        axes.set_xlabel("u: the model's probability of fewer muons")
    return figure
