"""Texts of the muon report. Pure."""

from __future__ import annotations

from workloads.base.report.words import ReportWords
from workloads.muons.metrics.settings import REDRAWS

HEADLINE = (
    "count_tv",
    "count_mean_ratio",
    "log10_energy_w1",
    "log10_radius_w1",
    "radius_m_w1",
    "log10_bundle_energy_w1",
    "log10_leading_energy_w1",
    "energy_above_10_tev_ratio",
    "conditional_log10_energy_w1",
    "c2st_auc",
)
"""Metrics that are shown first, in this order."""

WORDS = ReportWords(
    subject="Muon bundles of {checkpoint} ({model}, step {step}) beside real ones for the same primaries",
    headline=HEADLINE,
    sizes={"events": "events compared", "muons_real": "real muons", "muons_generated": "generated muons"},
    sizes_line="{events:,} events, {muons_real:,} real and {muons_generated:,} generated muons",
    about_numbers="Each number says how far generated events are from real ones. Two finite samples of the same"
    " physics differ, too: that is the <em>floor</em>, {floor}. A perfect generator has a ratio of about 1. Errors are"
    " standard deviations: of values over bootstraps of whole showers, of floors those of a perfect generator's value.",
    floors={
        "same primaries": f"found here with {REDRAWS} further draws of the simulator for the same primaries",
        "disjoint showers": "found here between real events of disjoint showers",
    },
    about_plots="Black: real, orange: {generated}, for the same primaries. Bands: one standard deviation over"
    " bootstraps of showers. In the ratios what both sides share, their primaries, cancels.",
    which_model="which model for what: docs/explanation/models.md",
)
