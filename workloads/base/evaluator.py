"""Evaluation of a model on the validation block, as telemetry writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from workloads.base.batch import Batch  # torch, which the sinks need not


@dataclass(frozen=True)
class Histogram:
    """Counts of values between neighbouring edges."""

    edges: npt.NDArray[np.float64]
    """(B + 1,), ascending."""
    counts: npt.NDArray[np.int64]
    """(B,)."""


Image = npt.NDArray[np.uint8]
"""(height, width, 3)."""


@dataclass(frozen=True)
class Evaluation:
    """Results on the validation block, by the names under which they are written."""

    scalars: Mapping[str, float]
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    images: Mapping[str, Image] = field(default_factory=dict)


class Evaluator(Protocol):
    """Evaluation of a model in training. Neither call changes the model or any random numbers that training draws."""

    def settings(self) -> dict[str, float]:
        """Settings that change during training, such as learning rates. No host sync."""

    def evaluate(self, block: Batch) -> Evaluation | None:
        """Results on ``block``, which is the same each time; None while there is nothing to evaluate yet."""
