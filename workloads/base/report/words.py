"""Texts of a workload in the report of an evaluation. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ReportWords:
    """Texts of one workload. Those marked HTML are inserted in the page without escaping."""

    subject: str
    """HTML; holds {checkpoint}, {model} and {step}."""
    headline: tuple[str, ...]
    """Names of the metrics that are shown first, in this order."""
    sizes: Mapping[str, str]
    """Label on the page of each of MetricReport.sizes."""
    sizes_line: str
    """The sizes in one line of text; holds each as {name}."""
    about_numbers: str
    """HTML; holds {floor}."""
    floors: Mapping[str, str]
    """HTML: method of finding the floor, for each floor_kind."""
    about_plots: str
    """HTML; may hold {generated}: the run that is drawn."""
    which_model: str = ""
    """Advice on the choice between two models, for a report of two runs."""
