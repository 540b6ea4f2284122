"""Panel of the WGAN: additions to the common panel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from workloads.muons.models.panel import MuonPanel
from workloads.muons.models.wgan.task import WganTask


class WganPanel(MuonPanel):
    """Panel that also reports the settings which the adaptive critic changes."""

    def __init__(self, task: WganTask, seed: int) -> None:
        super().__init__(task, seed)
        self._wgan = task

    def settings(self) -> dict[str, float]:
        """Learning rates, and the settings that the adaptive critic changes."""
        return {
            **super().settings(),
            "critic_steps": self._wgan.critic_steps,
            "penalty_weight": self._wgan.penalty_weight,
        }

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[None]:
        """Context in evaluation mode: else spectral normalisation updates its vectors at each use."""
        critic = self._wgan.networks.critic
        was_training = critic.training
        if self._wgan.config.network.spectral_norm:  # else the mode changes nothing, but causes a recompilation
            critic.eval()
        try:
            yield
        finally:
            critic.train(was_training)
