"""Training of the WGAN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from workloads.base.context import StepContext
from workloads.base.limits import Alarm
from workloads.base.training import Training
from workloads.muons.models.wgan.config import WganConfig
from workloads.muons.models.wgan.panel import WganPanel
from workloads.muons.models.wgan.task import WganTask

_DEAD = "nothing is learned from such gradients: roll back to an earlier checkpoint, or lower trainer.wgan.critic_lr"

ALARMS: Mapping[str, Alarm] = MappingProxyType(
    {
        "saturation": Alarm(
            above=0.1,
            steps=20,
            meaning="the critic's scores are at their bound, where gradients vanish: lower trainer.wgan.critic_lr, or"
            " use trainer.wgan.penalty_weight = 1",
        ),
        "critic_grad_norm": Alarm(below=1e-6, steps=20, meaning=_DEAD),
        "generator_grad_norm": Alarm(below=1e-6, steps=20, meaning=_DEAD),
        "gp_norm": Alarm(
            below=0.1,
            above=5.0,
            steps=100,
            zero_is_nothing=True,
            meaning="the penalty holds it near 1 in a normal training, and w_gap is a distance only then: change"
            " trainer.wgan.critic_lr or trainer.wgan.penalty_weight",
        ),
        "fake_spread": Alarm(
            below=0.3,
            steps=100,
            meaning="the generated muons are nearly all the same: the generator has collapsed, or learns nothing",
        ),
    }
)
"""Limits chosen on seeds 0 to 4 of the defaults and on five bad recipes: docs/how-to/diagnose.md."""


class WganTraining:
    """See Training."""

    headline = "w_gap"
    shown = ("c_loss", "g_loss", "m_loss", "w_gap")
    meaning_of_weights = ("network.radius_offset_m", "network.pooling", "network.local_tails")
    alarms: Mapping[str, float | Alarm] = ALARMS

    def task(self, config: WganConfig, context: StepContext) -> WganTask:
        """Task with networks, optimisers and training step."""
        return WganTask(config, context)

    def evaluator(self, task: WganTask, seed: int) -> WganPanel:
        """The physics panel."""
        return WganPanel(task, seed)

    def warnings(self, config: WganConfig) -> Sequence[str]:
        """Settings that train badly."""
        return config.warnings()


TRAINING: Training = WganTraining()
