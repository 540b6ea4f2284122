"""Metric sinks besides the status file: TensorBoard, and others with the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from workloads.base.evaluator import Histogram, Image

Setting = bool | int | float | str


class Sink(Protocol):
    """Receiver of metrics by step. ``step`` never falls, except after ``go_back``."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers by name."""

    def histograms(self, values: Mapping[str, Histogram], step: int) -> None:
        """Write distributions by name."""

    def images(self, values: Mapping[str, Image], step: int) -> None:
        """Write images by name."""

    def go_back(self, step: int) -> None:
        """Discard the values of steps after ``step``, from which training continues."""

    def flush(self) -> None:
        """Write all buffered values to disk, or begin to send them."""

    def close(self) -> None:
        """Flush and end."""
