"""All pictures of an evaluation, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from matplotlib import rc_context
from matplotlib.figure import Figure

from workloads.base.plots import STYLE, as_png
from workloads.base.report.outcome import Picture
from workloads.muons.evaluation.plots.calibration import reliability
from workloads.muons.evaluation.plots.counts import counts, counts_by_energy, empty_by_depth, mean_and_spread
from workloads.muons.evaluation.plots.energies import bundle_energies, spectrum
from workloads.muons.evaluation.plots.events import EventPairs
from workloads.muons.evaluation.plots.plane import energy_and_radius
from workloads.muons.evaluation.plots.radii import decoherence, radii, radius_and_energy
from workloads.muons.evaluation.plots.training import TrainingCurve, distances_by_step
from workloads.muons.metrics.bundles import Float64

_DRAWN: tuple[tuple[str, str, str, Callable[[EventPairs], Figure]], ...] = (
    (
        "counts",
        "Number of muons",
        "Probability of N muons in an event. Events without muons stand in the legend.",
        counts,
    ),
    (
        "counts-by-energy",
        "Number of muons, by primary energy",
        "The same in four quarters of the primary energies: marginal distributions can hide errors that cancel.",
        counts_by_energy,
    ),
    (
        "counts-mean",
        "Mean and spread of the number of muons",
        "Against the primary energy, for each mass number. A deterministic count would show in the spread.",
        mean_and_spread,
    ),
    (
        "empty-by-depth",
        "Events without muons",
        "Fraction of the events that have no muon at their depth.",
        empty_by_depth,
    ),
    ("energy", "Muon energies", "Spectrum of all muons at depth, E dN/dE.", spectrum),
    (
        "bundle-energy",
        "Leading muon and bundle",
        "Energy of an event's most energetic muon, and of all its muons together.",
        bundle_energies,
    ),
    (
        "radius",
        "Distances to the shower axis",
        "Muons per metre of distance, and per area in the plane across the axis.",
        radii,
    ),
    (
        "radius-and-energy",
        "Energy and distance",
        "Mean distance of muons of an energy, and mean energy at a distance: fast muons stay near the axis.",
        radius_and_energy,
    ),
    (
        "decoherence",
        "Decoherence curve",
        "Distances between two muons of an event; up to 50 random pairs of each event, which weigh 1 together.",
        decoherence,
    ),
    (
        "energy-radius-plane",
        "Energy and distance together",
        "Fraction of the muons in each cell of the plane, and the ratio.",
        energy_and_radius,
    ),
)


def pictures(events: EventPairs, pit_E: Float64, courses: Mapping[str, TrainingCurve]) -> Iterator[Picture]:
    """Pictures, each drawn when it is taken. Pictures without data are left out."""
    with rc_context(STYLE):
        for name, title, caption, draw in _DRAWN:
            yield Picture(name, title, caption, as_png(draw(events)))
        caption = (
            "Where each real count lies in the model's distribution for its primary (probability integral"
            " transform): flat if the model is right. A slope is a bias, a ∪ too little spread, a ∩ too much."
            " Right: how far the cumulative distribution is off."
        )
        yield Picture("reliability", "Reliability of the count model", caption, as_png(reliability(events, pit_E)))
        if courses:
            caption = "On the run's validation block. Dotted: the same distance between real and real events."
            yield Picture("training", "Distances over the training", caption, as_png(distances_by_step(courses)))
