"""Small tasks of both models, and what tests ask of any of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from toy_events import toy_batch

from benchmarks.reference_step import use_sgd
from workloads.base.context import StepContext
from workloads.base.segments import Segments
from workloads.base.step import BaseTask
from workloads.muons.models.config import LikelihoodConfig, MuonNetworkConfig, WganConfig
from workloads.muons.models.likelihood import LikelihoodTask
from workloads.muons.models.likelihood_densities import Draws
from workloads.muons.models.wgan import WganTask
from workloads.muons.models.wgan_networks import WganNetworks

CPU = torch.device("cpu")
CONTEXT = StepContext(CPU, seed=1)
SMALL = MuonNetworkConfig(hidden=16, energy_cut_gev=0.0)


def make_wgan(context: StepContext = CONTEXT, **settings: Any) -> WganTask:
    """After its first step, of the likelihood model, if that has been made."""
    return WganTask(WganConfig.model_validate({"network": SMALL, "likelihood_steps": 1, **settings}), context)


def make_sgd_wgan(context: StepContext = CONTEXT, rate: float = 0.01, **settings: Any) -> WganTask:
    """With SGD, because Adam's first step only knows the sign of a gradient, and forgives a wrong scale."""
    return use_sgd(make_wgan(context, **settings), rate)


def make_likelihood(context: StepContext = CONTEXT, **settings: Any) -> LikelihoodTask:
    return LikelihoodTask(LikelihoodConfig.model_validate({"network": SMALL, **settings}), context)


TaskT = TypeVar("TaskT", WganTask, LikelihoodTask, WganTask | LikelihoodTask)
MAKE: dict[str, Callable[..., WganTask | LikelihoodTask]] = {"wgan": make_wgan, "likelihood": make_likelihood}


def begun(task: TaskT) -> TaskT:
    """In the phase that is its own: after the first step of a WGAN, which is the likelihood model's."""
    if isinstance(task, WganTask):
        task.step(toy_batch(seed=99))
    return task


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


@contextmanager
def without_noise() -> Iterator[None]:
    """Numbers by the places of muons in their events, none twice: of equal ones, rounding would choose the largest."""

    def drawn(
        self: WganNetworks, known_EK: Tensor, segments: Segments, random: torch.Generator, num_sets: int
    ) -> list[Tensor]:
        muons, sets = self.likelihood.averaged.average, []
        place_P = segments.particles_P - segments.starts_E[segments.event_P]
        for number in range(num_sets):
            normal_PF = (place_P + number).sin().unsqueeze(1).expand(-1, muons.num_features)
            z_EZ = torch.full((len(known_EK), muons.latent), number % 2)
            draws = Draws(z_EZ[:, :1] * 0 + 0.4, z_EZ, torch.full_like(normal_PF, 0.4), normal_PF)
            sets.append(muons.drawn(known_EK, segments, draws))
        return [torch.stack(one).detach() for one in zip(*sets, strict=True)]

    half = patch.object(WganNetworks, "mix", lambda self, part: torch.full_like(part.present_E, 0.5))
    with patch.object(WganNetworks, "_drawn", drawn), half:
        yield
