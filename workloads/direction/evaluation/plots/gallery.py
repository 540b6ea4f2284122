"""All pictures of an evaluation, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from common.slow_progress import SlowProgress
from workloads.base.plots import STYLE, as_png
from workloads.base.report.outcome import Picture
from workloads.direction.evaluation.plots.angles import by_clean_sensors, by_energy, by_zenith, cumulative
from workloads.direction.evaluation.plots.calibration import by_kappa, pulls
from workloads.direction.evaluation.plots.frame import ShownEvents
from workloads.direction.evaluation.plots.sky import sky, zenith
from workloads.direction.evaluation.plots.topology import separation
from workloads.direction.metrics.predicted import PredictedEvents

_DRAWN: tuple[tuple[str, str, str, Callable[[ShownEvents], Figure | None]], ...] = (
    (
        "angles",
        "Angles",
        "Part of the events whose prediction is within an angle of the truth. In the legends: mean / median / 68 %.",
        cumulative,
    ),
    (
        "by-sensors",
        "Resolution by clean sensors",
        "Angle against the number of sensors with a pulse that is not auxiliary, in bins of equal numbers of events.",
        by_clean_sensors,
    ),
    ("by-energy", "Resolution by energy", "The same against the energy of the neutrino.", by_energy),
    ("by-zenith", "Resolution by zenith", "Quantiles of the angle against the true zenith.", by_zenith),
    (
        "sky",
        "Sky",
        "Cells of equal area. A model that collapsed points to a few of them. Centre: azimuth 0, horizontal.",
        sky,
    ),
    (
        "zenith",
        "Zenith",
        "Left: both distributions should agree. Right: mean shift, with its error. A model that is not sure is drawn to"
        " the middle.",
        zenith,
    ),
    (
        "calibration",
        "Is κ right?",
        "Mean angle by decile of κ, beside what von Mises-Fisher distributions of these κ have. Bars: bootstraps of"
        " events. Ratio above 1: the model is too sure.",
        by_kappa,
    ),
    (
        "pulls",
        "Pulls",
        "2κ(1 - cos θ) follows χ² with two degrees of freedom (mean 2, median 1.39) if κ is right and large.",
        pulls,
    ),
    (
        "separation",
        "Tracks and cascades",
        "κ as a sign of tracks. The threshold has the largest difference of the two shares (Youden) on half of the"
        " events; the table counts the other half.",
        separation,
    ),
)


def pictures(events: PredictedEvents, seed: int) -> Iterator[Picture]:
    """Pictures of the events with a predicted direction; those without data are left out."""
    used = events.take(np.isfinite(events.angle_rad_E))
    shown = ShownEvents(used, seed)
    has_energy = bool((used.energy_gev_E > 0).any())
    with rc_context(STYLE), SlowProgress("drawing: plots", len(_DRAWN)) as progress:
        for name, title, caption, draw in _DRAWN if len(used) else ():
            if (draw is not by_energy or has_energy) and (drawn := draw(shown)) is not None:
                yield Picture(name, title, caption, as_png(drawn))
            progress.advance(1)
