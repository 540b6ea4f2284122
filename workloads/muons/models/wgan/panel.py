"""The panel of the WGAN: what is special about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from workloads.muons.models.panel import MuonPanel
from workloads.muons.models.wgan.task import WganTask


class WganPanel(MuonPanel):
    """Also tells what the adaptive critic may change."""

    def __init__(self, task: WganTask, seed: int) -> None:
        super().__init__(task, seed)
        self._wgan = task

    def settings(self) -> dict[str, float]:
        """Learning rates, and what the adaptive critic may change."""
        return {
            **super().settings(),
            "critic_steps": self._wgan.critic_steps,
            "penalty_weight": self._wgan.penalty_weight,
        }

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[None]:
        """Spectral normalisation moves its vectors on at each use, but in the mode for evaluation."""
        critic = self._wgan.networks.critic
        was_training = critic.training
        if self._wgan.config.network.spectral_norm:  # else nothing differs, and compiled code would be compiled again
            critic.eval()
        try:
            yield
        finally:
            critic.train(was_training)
