"""Small tasks of both models, and what tests ask of any of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.reference_step import use_sgd
from workloads.base.context import StepContext
from workloads.base.step import BaseTask
from workloads.muons.models.config import LikelihoodConfig, MuonNetworkConfig, WganConfig, MuonNetworkConfig
from workloads.muons.models.likelihood import LikelihoodTask
from workloads.muons.models.wgan import WganTask
from workloads.muons.models.wgan_networks import Draw, WganEvents, WganNetworks

CPU = torch.device("cpu")
CONTEXT = StepContext(CPU, seed=1)
SMALL_WGAN = MuonNetworkConfig(hidden=16, z_global=4, z_local=4)
SMALL_LIKELIHOOD = MuonNetworkConfig(hidden=16, energy_cut_gev=0.0)


def make_wgan(context: StepContext = CONTEXT, **settings: Any) -> WganTask:
    return WganTask(WganConfig.model_validate({"network": SMALL_WGAN, **settings}), context)


def make_sgd_wgan(context: StepContext = CONTEXT, rate: float = 0.01, **settings: Any) -> WganTask:
    """With SGD, because Adam's first step only knows the sign of a gradient, and forgives a wrong scale."""
    return use_sgd(make_wgan(context, **settings), rate)


def make_likelihood(context: StepContext = CONTEXT, **settings: Any) -> LikelihoodTask:
    return LikelihoodTask(LikelihoodConfig.model_validate({"network": SMALL_LIKELIHOOD, **settings}), context)


MAKE: dict[str, Callable[..., WganTask | LikelihoodTask]] = {"wgan": make_wgan, "likelihood": make_likelihood}


def weights(network: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def same(before: list[Tensor], after: list[Tensor]) -> bool:
    return all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def finite(metrics: Mapping[str, Tensor]) -> bool:
    return all(value.shape == () and bool(value.isfinite()) for value in metrics.values())


def changed(before: list[Tensor], network: nn.Module) -> bool:
    return not same(before, weights(network))


def saved(task: BaseTask[Any, Any]) -> dict[str, Any]:
    """The state as it comes out of a file."""
    file = io.BytesIO()
    torch.save(task.state_dict(), file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file, weights_only=True)
    return state


def without_noise(self: WganNetworks, part: WganEvents, *, for_generator: bool = False) -> Draw:
    """Zeros, and ones for the further events of an energy score."""
    times = self.generated_events if for_generator else 1
    z_EZ = torch.ones(times, part.segments.num_events, self.generator.z_global)
    z_PZ = torch.ones(times, part.segments.num_particles, self.generator.z_local)
    z_EZ[0], z_PZ[0] = 0, 0
    mix_E = None if for_generator else torch.full((part.segments.num_events,), 0.5)
    return Draw(z_EZ.flatten(0, 1), z_PZ.flatten(0, 1), mix_E)
