"""Variants of the step that are compared: the one table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.data import as_fed
from benchmarks.gpu.precision import set_matmul_precision
from benchmarks.gpu.setting import Setting
from benchmarks.reference_step import ReferenceStep
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask

SEED = 1


class Steps(NamedTuple):
    """Steps on one batch."""

    step: Callable[[], object]
    cycle: int
    """Number of steps after which the same work comes again: not each has the same number of gradient penalties."""

    def all(self) -> None:
        """One cycle."""
        for _ in range(self.cycle):
            self.step()


class Variant(NamedTuple):
    """One way to make a step."""

    name: str
    settings: Mapping[str, Any] = {}
    """Settings of `trainer.wgan`."""
    is_plain: bool = False
    """The step of benchmarks/reference_step.py."""
    is_fed: bool = False
    """The batch in microbatches, as the trainer feeds it; otherwise in one."""
    is_apart: bool = False
    """Measured in a stage of its own: it takes long to start, its operators can't be counted, and if it fails, the
    figures of the others are there."""

    def precisions(self, *, is_cuda: bool) -> tuple[str, ...]:
        """Precisions that differ for it, the default first. tf32 is CUDA's; the plain step has no bfloat16."""
        matmul = ("tf32", "float32") if is_cuda else ("float32",)
        return matmul if self.is_plain else (*matmul, "bf16")

    def make(self, setting: Setting, precision: str, batch: Batch) -> Steps:
        """Steps of generator and critic on ``batch``, after one of the likelihood model. Sets torch's precision."""
        device = torch.device(setting.device)
        set_matmul_precision(precision)
        config = WganConfig.model_validate(setting.section | dict(self.settings))
        cycle = config.gp_every // gcd(config.gp_every, config.critic_steps)
        fed = as_fed(batch, setting.microbatch_particles) if self.is_fed else batch
        model: WganTask | ReferenceStep = ReferenceStep(config, device, SEED)
        if not self.is_plain:
            model = WganTask(config, StepContext(device, SEED, bf16=precision == "bf16"))
        model.step(fed)
        return Steps(lambda: model.step(fed), cycle)


SHIPPED = Variant("shipped")
VARIANTS = (
    SHIPPED,
    Variant("plain", is_plain=True),
    Variant("shipped, as fed", is_fed=True),
    Variant("compiled", {"compile": True}, is_apart=True),
)
