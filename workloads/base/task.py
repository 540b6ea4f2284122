"""A model with its losses and optimisers, as the training loop sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from workloads.base.batch import Batch


class Task(Protocol):
    """One model in training."""

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One optimiser step; 0-dim metrics on the device."""

    def observed(self, metrics: Mapping[str, float]) -> None:
        """The newest step's metrics have reached the host."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that training goes on from."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from state_dict(). A part that does not fit any more (another optimiser, say) is left out, and logged.

        Raises KeyError, RuntimeError or ValueError if the networks differ.
        """

    def load_weights(self, state: dict[str, Any]) -> None:
        """Take over what was learned from another run's state_dict(), and nothing else. Raises as load_state_dict."""

    def scale_learning_rates(self, factor: float) -> None:
        """Multiply all learning rates by ``factor`` from now on; part of state_dict()."""
