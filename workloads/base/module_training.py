"""Trainings of the user's own torch modules by their own loss, and of no model.

Shape suffix: E events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Adam

from common.config import ConfigBranch, validated
from common.errors import BadInputError, IcestreamError
from common.own_code import described
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.optimiser import uncompiled
from workloads.base.step import BaseTask
from workloads.base.training import Evaluation, ModelTraining


class ModelSettings(ConfigBranch):
    """Settings of a model of one's own: `trainer.own`. Derive a class with further ones."""

    learning_rate: float = Field(1e-3, gt=0)
    """Learning rate of Adam."""
    schedule: Literal["constant", "cosine", "one_cycle"] = "constant"
    """Schedule of the learning rate."""
    schedule_steps: int = Field(0, ge=0)
    """Steps of the cosine or cycle."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises from 0."""
    gradient_clip: float = Field(0.0, ge=0)
    """Largest norm of the gradient; larger ones are scaled down to it. 0: no limit."""
    chunk_particles: int = Field(0, ge=0)
    """Most particles for which the module is called at once. 0: about 2,000 on a CPU, a whole microbatch on a GPU."""


Settings = TypeVar("Settings", bound=ModelSettings)


class ModuleTask(BaseTask[Settings, Microbatch]):
    """Module that returns the loss of each event, trained with Adam on their mean."""

    SECTION = "trainer.own"
    METRICS = ("loss", "network_grad_norm", "skipped_updates")
    RECIPE = ("learning_rate", "schedule", "schedule_steps", "warmup_steps", "gradient_clip")

    def __init__(self, settings: Settings, context: StepContext, build: Callable[[Settings], nn.Module]) -> None:
        with context.initial_weights(), _as_mistake():
            self.network = build(settings).to(context.device)
        optimiser = uncompiled(Adam)(self.network.parameters(), lr=settings.learning_rate, fused=True)
        super().__init__(settings, context, {"network": self.network}, {"network": (self.network, optimiser)})

    def train(self, batch: Batch, parts: list[Microbatch], metrics: dict[str, Tensor]) -> None:
        """Update by the mean loss of all events, of all ranks."""
        metrics["loss"] = self.update_by_loss("network", self.total_loss, parts, batch.total_events, metrics)

    def total_loss(self, events: Microbatch) -> Tensor:
        """Sum of the events' losses. -> ()."""
        with self.context.precision(), nullcontext() if self.steps else _as_mistake():
            loss_E = self.network(events)
        if loss_E.shape != (events.num_events,):
            raise BadInputError(
                f"trainer.model: its module returned the shape {tuple(loss_E.shape)} for {events.num_events} events;"
                f" expected ({events.num_events},), the loss of each event"
            )
        total: Tensor = loss_E.float().sum()
        return total


@contextmanager
def _as_mistake() -> Iterator[None]:
    """Context of the user's code: an error in it ends the run with its line, instead of one restart after the other."""
    try:
        yield
    except (torch.OutOfMemoryError, IcestreamError):
        raise
    except Exception as error:
        raise BadInputError(f"trainer.model: its module fails: {described(error)}") from error


class ModuleEvaluator:
    """Mean loss on the validation block."""

    def __init__(self, task: ModuleTask[Any]) -> None:
        self._task = task

    def settings(self) -> dict[str, float]:
        """Learning rate."""
        return {"lr": self._task.learning_rates()["network"]}

    @torch.no_grad()
    def evaluate(self, block: Batch) -> Evaluation | None:
        """Return the mean loss of the block's events, which picks `best.pt`."""
        total = self._task.zero.double()
        with _as_evaluated(self._task.network):
            for microbatch in block.microbatches:
                for part in microbatch.chunks(self._task.config.chunk_particles or _VALIDATION_PARTICLES):
                    total += self._task.total_loss(part)
        return Evaluation({"panel/score": float(total) / block.num_events}) if block.num_events else None


_VALIDATION_PARTICLES = 65_536


@contextmanager
def _as_evaluated(network: nn.Module) -> Iterator[None]:
    """Context in which the network is what `icestream.load` gives, without dropout; the training's modes and random
    numbers are as before behind it."""
    modes = [(module, module.training) for module in network.modules()]
    devices = {tensor.device.index for tensor in network.parameters() if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=devices):
        network.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode


class ModuleTraining(Generic[Settings]):
    """Training of ``build(settings)``, a torch module that returns the loss of each event of a microbatch, (E,).

    The module gets a `workloads.base.batch.Microbatch`: `event_columns`, `particle_columns`, `offsets_E1`. The rest is
    the engine's: optimiser, checkpoints, ranks, parts of a batch, threads, health, TensorBoard.
    """

    headline = "loss"
    shown = ("loss",)

    def __init__(
        self,
        build: Callable[[Settings], nn.Module],
        settings: type[Settings] = ModelSettings,  # type: ignore[assignment]
        *,
        meaning_of_weights: tuple[str, ...] = (),
        alarms: Mapping[str, float] | None = None,
    ) -> None:
        """``meaning_of_weights``, ``alarms``: see workloads.base.training.Training."""
        self._build = build
        self._settings = settings
        self.meaning_of_weights = meaning_of_weights
        self.alarms: Mapping[str, float] = alarms or {}

    def settings(self, section: Mapping[str, Any]) -> Settings:
        """Checked settings of the section `trainer.own`. Raises BadInputError that names the key."""
        keys = [f"{ModuleTask.SECTION}.{name}" for name in self._settings.model_fields]
        return validated(self._settings.model_validate, section, keys, section=ModuleTask.SECTION)

    def task(self, config: Mapping[str, Any], context: StepContext) -> ModuleTask[Settings]:
        """Task with newly initialised weights."""
        return ModuleTask(self.settings(config), context, self._build)

    def load(self, config: Mapping[str, Any], task_state: Mapping[str, Any], device: torch.device) -> nn.Module:
        """Trained module, of a checkpoint's task."""
        module = self._build(self.settings(config))
        module.load_state_dict(task_state["networks"]["network"])
        return module.to(device).requires_grad_(False).eval()

    def evaluator(self, task: ModuleTask[Settings], seed: int) -> ModuleEvaluator:
        """Mean loss on the validation block."""
        return ModuleEvaluator(task)

    def warnings(self, config: Mapping[str, Any]) -> Sequence[str]:
        """None."""
        return ()


class NoModelTask:
    """A task without weights, whose only metric is the number of events of a batch, and its evaluator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Return the number of events, 0-dim."""
        return {"batch_events": torch.full((), float(batch.total_events), device=self._device)}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: only the position in the stream is saved."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there are no weights."""

    def load_weights(self, state: dict[str, Any]) -> None:
        """Do nothing: there are no weights."""

    def scale_learning_rates(self, factor: float) -> None:
        """Do nothing: there are none."""

    def settings(self) -> dict[str, float]:
        """Return nothing."""
        return {}

    def evaluate(self, block: Batch) -> Evaluation | None:
        """Return None: there is nothing to evaluate."""
        return None


NO_MODEL_TRAINING = ModelTraining(
    "batch_events", (), {}, lambda config, context: NoModelTask(context.device), lambda task, seed: task
)
"""The training of no model, whose task evaluates nothing either."""
