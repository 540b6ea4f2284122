"""The training step, as far as it is the same for every model: one class that a model's task derives from."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.noise import Noise
from workloads.base.optimiser import GuardedOptimiser, PartGradients, UpdateResult
from workloads.base.parts import PartPool, PartT, chunks, halved_if_out_of_memory
from workloads.base.schedule import Course, learning_rate_factor

logger = logging.getLogger(__name__)


class StepConfig(Course, Protocol):
    """Settings that every model has."""

    @property
    def chunk_particles(self) -> int:
        """Particles of a part of a batch at most; 0: by the device."""

    @property
    def gradient_clip(self) -> float:
        """Largest norm of a network's gradient, which is scaled down to it; 0: any."""


ConfigT = TypeVar("ConfigT", bound=StepConfig)


class BaseTask(ABC, Generic[ConfigT, PartT]):
    """Networks, optimisers and counters of a model, and the step that trains them.

    A batch is cut into parts; gradients of parts add up, over all ranks. Noise depends on seed, step and lane alone
    (noise.py), so that there is none to save. Nothing in a step waits for the device, and the metrics stay there.
    """

    SECTION: ClassVar[str]
    """Of the configuration, for messages: ``trainer.…``."""
    METRICS: ClassVar[tuple[str, ...]]
    """Of every step, 0 where nothing was trained; `…_grad_norm` of each optimiser and `skipped_updates` among them."""
    RECIPE: ClassVar[tuple[str, ...]]
    """Settings that may change when training goes on from a checkpoint; each change is logged."""
    RESTARTS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Setting of RECIPE -> optimisers whose saved state is left out where it has changed."""
    COUNTERS: ClassVar[tuple[str, ...]] = ("steps", "rate_scale")
    """Attributes that are saved in a checkpoint."""

    def __init__(
        self,
        config: ConfigT,
        context: StepContext,
        modules: Mapping[str, nn.Module],
        optimisers: Mapping[str, tuple[nn.Module, Adam | SGD]],
        *,
        parallel: bool = True,
    ) -> None:
        """``modules``: by their name in a checkpoint. ``optimisers``: with the network that each trains.

        ``parallel``: parts may be computed at once; not if a network changes its state as it is used.
        """
        self.config = config
        self.context = context
        self.device = context.device
        self.noise = Noise(context.seed, context.device)
        self.steps = 0
        self.rate_scale = 1.0
        self.zero = torch.zeros((), device=context.device)
        self.optimisers = {
            name: GuardedOptimiser(network, optimiser, clip=config.gradient_clip, context=context)
            for name, (network, optimiser) in optimisers.items()
        }
        self.pool = PartPool(context.threads if parallel and context.device.type == "cpu" else 1)
        self._modules = modules

    # ---- What a model defines.

    @abstractmethod
    def prepare(self, microbatch: Microbatch, random: torch.Generator) -> Microbatch:
        """The microbatch as it is cut into parts: thinned, say, or with noise in further columns."""

    @abstractmethod
    def part(self, chunk: Microbatch, whole: Microbatch, random: torch.Generator) -> PartT:
        """A chunk of the prepared microbatch ``whole`` as the networks are given it."""

    @abstractmethod
    def train(self, batch: Batch, parts: list[PartT], metrics: dict[str, Tensor]) -> None:
        """All updates of a step; enters their metrics."""

    def observe(self, batch: Batch) -> bool:
        """Fit what is computed from data and then kept, such as a standardisation. True if something was fitted.

        Called by ``step``.
        """
        return False

    def observed(self, metrics: Mapping[str, float]) -> None:
        """The newest step's metrics have reached the host. No effect, unless a model adapts to them."""

    # ---- The step.

    @property
    def num_parameters(self) -> int:
        """Trained numbers of all networks."""
        return sum(optimiser.num_parameters for optimiser in self.optimisers.values())

    def learning_rates(self) -> dict[str, float]:
        """Of the newest step, by optimiser."""
        return {name: optimiser.learning_rate for name, optimiser in self.optimisers.items()}

    def scale_learning_rates(self, factor: float) -> None:
        """Multiply all learning rates from now on."""
        self.rate_scale *= factor

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Metrics of one optimiser step, 0-dim on the device: METRICS, and what ``train`` adds."""
        self.observe(batch)
        self.noise.begin(self.steps)
        for optimiser in self.optimisers.values():
            optimiser.set_rate_factor(self.rate_scale * learning_rate_factor(self.steps, self.config))
        metrics = dict.fromkeys(self.METRICS, self.zero)
        self.train(batch, self.parts(batch, self.noise), metrics)
        self.steps += 1
        return metrics

    def parts(self, batch: Batch, noise: Noise) -> list[PartT]:
        """The events of a batch, in order, in parts of at most ``chunk_particles`` particles."""
        found = []
        for microbatch in batch.microbatches:
            if microbatch.num_events > 0:
                random = noise.of(microbatch.lane)
                whole = self.prepare(microbatch, random)
                of_it = chunks(whole, self.config.chunk_particles, self.device)
                found += [self.part(chunk, whole, random) for chunk in of_it]
        return found

    def update(
        self,
        name: str,
        gradients: Callable[[list[PartT]], Iterable[PartGradients]],
        parts: list[PartT],
        metrics: dict[str, Tensor],
        *,
        num_sums: int = 1,
    ) -> tuple[UpdateResult, list[PartT]]:
        """One update of an optimiser, and the parts that fitted in memory: out of memory, once more with all halved.

        Enters gradient norm and skipped updates. Gradients of parts add up, so that halves give the same update, but
        for noise that ``gradients`` draws.
        """
        optimiser = self.optimisers[name]
        result, parts = halved_if_out_of_memory(lambda parts: optimiser.update(gradients(parts), num_sums), parts)
        metrics[f"{name}_grad_norm"] = result.grad_norm
        metrics["skipped_updates"] = metrics["skipped_updates"] + result.skipped
        return result, parts

    def update_by_loss(
        self,
        name: str,
        loss_of: Callable[[PartT], Tensor],
        parts: list[PartT],
        total: Tensor | float,
        metrics: dict[str, Tensor],
    ) -> Tensor:
        """One update by a loss that draws no noise: its sum over parts and ranks, divided by ``total``. -> that ()."""
        optimiser = self.optimisers[name]

        def gradients(part: PartT) -> PartGradients:
            loss = loss_of(part) / total
            return PartGradients(optimiser.gradients(loss), loss.detach().unsqueeze(0))

        result, _ = self.update(name, lambda parts: self.pool.map(gradients, parts), parts, metrics)
        return result.sums[0]

    # ---- Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """All that training goes on from.

        ``torch.load(weights_only=True)`` reads it. Tensors are not copied: save it before the next step.
        """
        return {
            "networks": {name: module.state_dict() for name, module in self._modules.items()},
            "optimisers": {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()},
            "counters": {name: getattr(self, name) for name in self.COUNTERS},
            "recipe": {name: getattr(self.config, name) for name in self.RECIPE},
        }

    def load_weights(self, state: dict[str, Any]) -> None:
        """Networks of ``state_dict()``, nothing else. KeyError or RuntimeError, of torch, if they differ."""
        for name, module in self._modules.items():
            module.load_state_dict(state["networks"][name])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from ``state_dict()``. KeyError, RuntimeError or ValueError, of torch, if the networks differ.

        With a changed RECIPE weights and step are kept, the optimisers in RESTARTS begin anew; each change is logged.
        """
        self.load_weights(state)
        for name in self.COUNTERS:
            setattr(self, name, state["counters"][name])
        restarted: set[str] = set()
        for name in self.RECIPE:
            before, now = state["recipe"][name], getattr(self.config, name)
            if before == now:
                continue
            names = self.RESTARTS.get(name, ())
            restarted.update(names)
            logger.warning(
                "%s.%s was %s in the checkpoint and is %s now; the weights are kept%s",
                self.SECTION,
                name,
                before,
                now,
                f", the optimisers of {' and '.join(names)} begin anew" if names else "",
            )
        for name, optimiser in self.optimisers.items():
            if name not in restarted:
                optimiser.load_state_dict(state["optimisers"][name])
