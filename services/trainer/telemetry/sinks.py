"""Where what the trainer tells goes, besides its status file: TensorBoard, and others under the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Setting = bool | int | float | str


@dataclass(frozen=True)
class Histogram:
    """How often values fell between neighbouring edges."""

    edges: npt.NDArray[np.float64]
    """(B + 1,), ascending."""
    counts: npt.NDArray[np.int64]
    """(B,)."""


Image = npt.NDArray[np.uint8]
"""(height, width, 3)."""


class Sink(Protocol):
    """Takes what is told at some steps. ``step`` never falls, but for ``go_back``."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Numbers by name."""

    def histograms(self, values: Mapping[str, Histogram], step: int) -> None:
        """Distributions by name."""

    def images(self, values: Mapping[str, Image], step: int) -> None:
        """Pictures by name."""

    def go_back(self, step: int) -> None:
        """Training goes on behind ``step`` again: what was told of later steps is void."""

    def flush(self) -> None:
        """Have all of it on disk, or on its way."""

    def close(self) -> None:
        """Flush, and take no more."""
