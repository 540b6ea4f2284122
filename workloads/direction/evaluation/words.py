"""Texts of the direction report. Pure."""

from __future__ import annotations

from workloads.base.report.words import ReportWords
from workloads.direction.metrics.evaluate import CALIBRATED, POSTERIOR

HEADLINE = (
    "angle_mean_deg",
    "angle_median_deg",
    "angle_68_deg",
    "track_angle_mean_deg",
    "cascade_angle_mean_deg",
    "kappa_pull_mean",
)
"""Metrics that are shown first, in this order."""

WORDS = ReportWords(
    subject="Directions that {checkpoint} ({model}, step {step}) predicts beside the true ones",
    headline=HEADLINE,
    sizes={"events": "events", "tracks": "tracks", "cascades": "cascades"},
    sizes_line="{events:,} events, {tracks:,} tracks, {cascades:,} cascades",
    about_numbers="Angles are those between the predicted and the true direction; 90° is chance. The length κ of the"
    " predicted vector is its precision: 2κ(1 - cos θ) has a mean of 2 if it is right and large, and its floor if it is"
    " right. The <em>floor</em> is what the best possible model would reach: {floor}. Errors are standard deviations"
    " over bootstraps of events, those of floors the errors of their measurement.",
    floors={
        CALIBRATED: "known here for calibration only, from angles drawn with the predicted κ",
        POSTERIOR: "for calibration from angles drawn with the predicted κ; for angles the posterior by the simulator's"
        " own likelihood, with the topology and the ice known (see the notes)",
    },
    about_plots="Orange: the model; black: truth, or what is expected. Other methods in their own colours. Bands and"
    " bars are named in the captions.",
)
