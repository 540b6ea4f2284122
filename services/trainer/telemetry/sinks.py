"""Metric sinks besides the status file: TensorBoard, and others under the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from workloads.base.evaluator import Histogram, Image

Setting = bool | int | float | str


class Sink(Protocol):
    """Receiver of metrics by step. ``step`` never falls, but for ``go_back``."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Numbers by name."""

    def histograms(self, values: Mapping[str, Histogram], step: int) -> None:
        """Distributions by name."""

    def images(self, values: Mapping[str, Image], step: int) -> None:
        """Pictures by name."""

    def go_back(self, step: int) -> None:
        """Training goes on behind ``step`` again: values of later steps are void."""

    def flush(self) -> None:
        """Have all of it on disk, or on its way."""

    def close(self) -> None:
        """Flush, and take no more."""
