"""Models of the benchmark, with one interface: step on batches, then draw events.

Shapes: E events, P muons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.physics.present_recipe import PresentRecipe
from benchmarks.physics.spec import Run
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.base.schedule import learning_rate_factor
from workloads.base.segments import segment_sum
from workloads.muons.generation.generator import MuonGenerator
from workloads.muons.models.flow.config import FlowConfig
from workloads.muons.models.flow.sampler import FlowSampler
from workloads.muons.models.flow.task import FlowTask
from workloads.muons.models.wgan import losses
from workloads.muons.models.wgan.config import WganConfig
from workloads.muons.models.wgan.networks import WganEvents
from workloads.muons.models.wgan.sampler import WganSampler
from workloads.muons.models.wgan.task import WganTask

CPU = torch.device("cpu")


class Model(Protocol):
    """Model in training."""

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters of all networks."""

    def step(self, batch: Batch) -> object:
        """One optimiser step."""

    def sampler(self) -> MuonGenerator:
        """Generator with the present weights."""

    def state_dict(self) -> dict[str, Any]:
        """State that torch can save, and load with weights_only."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the weights from ``state_dict()`` of the same model."""

    def begin_with(self, state: dict[str, Any]) -> None:
        """Load the weights of another run's model; optimisers and steps start new."""


def make_model(run: Run) -> Model:
    """Untrained model. Raises pydantic's ValidationError for settings that do not exist."""
    return MODELS[run.model](run)


def wgan_config(run: Run) -> WganConfig:
    """Configuration: the defaults, a cosine over the run's steps, and the run's own settings."""
    return WganConfig.model_validate({"schedule_steps": run.steps, **run.settings})


class _OfTask:
    """Part that is the same for each model whose step is that of a task."""

    task: WganTask | FlowTask

    @property
    def num_parameters(self) -> int:
        """See Model."""
        return self.task.num_parameters

    def step(self, batch: Batch) -> object:
        """See Model."""
        return self.task.step(batch)

    def state_dict(self) -> dict[str, Any]:
        """See Model."""
        return {name: module.state_dict() for name, module in self.task.networks.modules().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Model."""
        for name, module in self.task.networks.modules().items():
            module.load_state_dict(state[name])

    def begin_with(self, state: dict[str, Any]) -> None:
        """See Model."""
        self.load_state_dict(state)


class Wgan(_OfTask):
    """WGAN of the project, with changes of its step that no setting offers."""

    def __init__(self, run: Run) -> None:
        self.config = wgan_config(run)
        self.task: WganTask = WganTask(self.config, StepContext(CPU, run.seed))
        for name in run.changes:
            _CHANGES[name](self.task)

    def sampler(self) -> WganSampler:
        """See Model."""
        return WganSampler.from_state(self.config, self.task.state_dict(), CPU)


class CountHeadAlone(Wgan):
    """WGAN with training of the count head only: thirty times as fast.

    Its muons have no meaning, or are those of the run from which it starts.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._optimiser = torch.optim.Adam(self.task.networks.count_head.parameters(), self.config.count_lr)
        self._steps = 0

    def step(self, batch: Batch) -> object:
        """Update the count head, with loss, optimiser and learning rates of WganTask.step."""
        self.task.observe(batch)
        networks = self.task.networks
        for group in self._optimiser.param_groups:
            group["lr"] = self.config.count_lr * learning_rate_factor(self._steps, self.config)
        loss = torch.zeros(())
        for part in batch.microbatches:
            conditions_EC = networks.standardise.conditions(part.event_columns["primary"])
            loss = loss + networks.count_head.loss(conditions_EC, part.offsets_E1.diff())
        loss = loss / batch.num_events
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        self._steps += 1
        return loss.detach()

    def begin_with(self, state: dict[str, Any]) -> None:
        """See Model; the count head may be of another kind, and is not loaded."""
        self.load_state_dict({**state, "count_head": self.task.networks.count_head.state_dict()})


def _raw_numbers(task: WganTask) -> None:
    """Use conditions and features as they are: lg E, lg(E/A), cos zenith, lg A, lg depth; lg E, lg(r + r0)."""
    standardise = task.networks.standardise
    state = standardise.state_dict()
    state |= {name: torch.tensor(True) for name in ("conditions_fitted", "features_fitted")}
    standardise.load_state_dict(state)


def _penalty_per_muon(task: WganTask) -> None:
    """Use the present recipe's penalty: i-th real with i-th generated muon, in no order; a norm for each muon."""
    networks = task.networks

    def penalty(part: WganEvents, fake_PF: Tensor, mix_E: Tensor) -> losses.GradientPenalty:
        between_PF = losses.between(part.real_PF, fake_PF, part.segments, mix_E)
        slope_PF = networks.critic.slope(between_PF, part.conditions_EC, part.segments)
        norm_P = (slope_PF.square().sum(1) + losses.NORM_FLOOR).sqrt()
        # The interface expects a sum over events; here it is the mean over muons.
        events_a_muon = part.source.num_present / part.source.num_particles
        norm = segment_sum(norm_P.detach(), part.segments).sum() * events_a_muon
        return losses.GradientPenalty((norm_P - 1).square().sum() * events_a_muon, norm)

    networks.penalty = penalty  # type: ignore[method-assign, assignment]


_CHANGES: dict[str, Callable[[WganTask], None]] = {
    "raw numbers": _raw_numbers,
    "penalty per muon": _penalty_per_muon,
}


class Flow(_OfTask):
    """Flow of the project."""

    def __init__(self, run: Run) -> None:
        self.config = FlowConfig.model_validate({"schedule_steps": run.steps, **run.settings})
        self.task = FlowTask(self.config, StepContext(CPU, run.seed))

    def sampler(self) -> FlowSampler:
        """See Model."""
        return FlowSampler.from_state(self.config, self.task.state_dict(), CPU)


MODELS: dict[str, Callable[[Run], Model]] = {
    "wgan": Wgan,
    "count head": CountHeadAlone,
    "flow": Flow,
    "present": lambda run: PresentRecipe(CPU, run.seed),
}
