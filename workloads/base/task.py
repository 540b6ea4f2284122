"""Interface of a model with its losses and optimisers to the training loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from workloads.base.batch import Batch


class Task(Protocol):
    """One model in training."""

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Do one optimiser step. Returns 0-dim metrics on the device."""

    def observed(self, metrics: Mapping[str, float]) -> None:
        """Take the newest step's metrics, now on the host."""

    def state_dict(self) -> dict[str, Any]:
        """State from which training resumes."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from state_dict(). Parts that don't fit any more (another optimiser, say) are skipped and logged.

        Raises KeyError, RuntimeError or ValueError if the networks differ.
        """

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load only the learned weights of another run's state_dict(). Raises the same errors as load_state_dict."""

    def scale_learning_rates(self, factor: float) -> None:
        """Multiply all further learning rates by ``factor``, which state_dict() holds."""
