"""Training step common to all models: base class of their tasks."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from workloads.base.batch import Batch, Microbatch, joined
from workloads.base.context import Noise, StepContext
from workloads.base.device import CPU_CHUNK_PARTICLES, PartPool, PartT, halves_of, most_particles
from workloads.base.optimiser import GradientSum, GuardedOptimiser, PartGradients, UpdateResult
from workloads.base.random_streams import SharedPurpose
from workloads.base.training import StepConfig, learning_rate_factor

logger = logging.getLogger(__name__)


ConfigT = TypeVar("ConfigT", bound=StepConfig)
Prepare = Callable[[Microbatch, torch.Generator], Microbatch]


class BaseTask(ABC, Generic[ConfigT, PartT]):
    """Networks, optimisers and counters of a model, and the step that trains them.

    The events are cut into parts; gradients are summed over parts and ranks. Noise depends on
    seed, step and place in the batch only (`Noise`), so that no generator state is saved. A step has no host sync,
    and its metrics stay on the device.
    """

    SECTION: str
    """Section of the configuration, for messages: ``trainer.…``."""
    METRICS: ClassVar[tuple[str, ...]]
    """Metrics of every step, 0 where nothing was trained; include each optimiser's `…_grad_norm`, `skipped_updates`."""
    RECIPE: ClassVar[tuple[str, ...]]
    """Settings that may change when training resumes from a checkpoint; each change is logged."""
    CPU_CHUNK: ClassVar[int] = CPU_CHUNK_PARTICLES
    """Largest number of particles in a part of a batch on a CPU, if not configured."""
    COUNTERS: ClassVar[tuple[str, ...]] = ("steps", "rate_scale")
    """Attributes that are saved in a checkpoint."""

    def __init__(
        self,
        config: ConfigT,
        context: StepContext,
        modules: Mapping[str, nn.Module],
        optimisers: Mapping[str, tuple[nn.Module, Adam | SGD]],
        *,
        particle_bytes: int = 0,
        parallel: bool = True,
    ) -> None:
        """``modules``: networks by their name in a checkpoint. ``optimisers``: each with the network that it trains.

        ``particle_bytes``: memory of an update for each particle, about, if it depends on their number alone. Then all
        microbatches are joined, and parts are limited by a GPU's memory; 0: by ``stream.max_particles``.
        ``parallel``: parts may be computed in parallel; not for networks that change state in their forward pass.
        """
        self.config = config
        self.context = context
        self.device = context.device
        self.noise = Noise(SharedPurpose.TRAINING_NOISE, context.seed, context.device)
        self.steps = 0
        self.rate_scale = 1.0
        self.zero = torch.zeros((), device=context.device)
        self.optimisers = {
            name: GuardedOptimiser(network, optimiser, clip=config.gradient_clip, context=context)
            for name, (network, optimiser) in optimisers.items()
        }
        self._joins = particle_bytes > 0
        self.most_particles = most_particles(config.chunk_particles, context.device, self.CPU_CHUNK, particle_bytes)
        """Largest number of particles in a part."""
        self.pool = PartPool(context.threads if parallel and context.device.type == "cpu" else 1)
        self._modules = modules

    # ---- Defined by each model.

    def prepare(self, microbatch: Microbatch, random: torch.Generator) -> Microbatch:
        """Return the microbatch before it is cut into parts: thinned, or with noise in additional columns, say."""
        return microbatch

    def part(self, chunk: Microbatch, whole: Microbatch, random: torch.Generator) -> PartT:
        """Return the input of the networks from a chunk of the prepared microbatch ``whole``; by default the chunk."""
        return chunk  # type: ignore[return-value]

    @abstractmethod
    def train(self, batch: Batch, parts: list[PartT], metrics: dict[str, Tensor]) -> None:
        """Do all updates of a step; add their metrics to ``metrics``."""

    def observe(self, batch: Batch) -> bool:
        """Fit constants from the data, such as a standardisation. True if something was fitted.

        Called by ``step``.
        """
        return False

    # ---- The step.

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters of all networks."""
        return sum(optimiser.num_parameters for optimiser in self.optimisers.values())

    def learning_rates(self) -> dict[str, float]:
        """Learning rates of the newest step, by optimiser."""
        return {name: optimiser.learning_rate for name, optimiser in self.optimisers.items()}

    def scale_learning_rates(self, factor: float) -> None:
        """Multiply all further learning rates by ``factor``."""
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

    def parts(self, batch: Batch, noise: Noise, prepare: Prepare | None = None) -> list[PartT]:
        """Events of a batch, in parts of at most ``most_particles``, in order. ``prepare``: by default
        the method."""
        prepare = prepare or self.prepare
        found = []
        for microbatches in self._together([one for one in batch.microbatches if one.num_events > 0]):
            random = noise.of(microbatches[0])
            whole = prepare(joined(microbatches), random)
            found += [self.part(chunk, whole, random) for chunk in whole.chunks(self.most_particles)]
        return found

    def _together(self, microbatches: list[Microbatch]) -> Iterator[list[Microbatch]]:
        """Microbatches that are joined: all, if memory depends on the number of particles alone, else neighbours within
        the limits of the context."""
        if self._joins:
            yield from [microbatches] if microbatches else []
            return
        most, most_squared = self.context.max_particles, self.context.max_squared_particles
        together: list[Microbatch] = []
        particles = squared = 0
        for one in microbatches:
            particles += one.num_particles
            squared += one.squared_particles if most_squared else 0
            if together and (particles > most or squared > most_squared):
                yield together
                together, particles = [], one.num_particles
                squared = one.squared_particles if most_squared else 0
            together.append(one)
        if together:
            yield together

    def update(
        self,
        name: str,
        gradients: Callable[[list[PartT]], Iterable[PartGradients]],
        parts: list[PartT],
        metrics: dict[str, Tensor],
        *,
        num_sums: int = 1,
    ) -> tuple[UpdateResult, list[PartT]]:
        """Result of one optimiser update and the parts that it computed: if out of memory, repeated with all halved.

        Adds gradient norm and skipped updates to the metrics. Gradients of parts are summed, so that halves give the
        same update, apart from noise that ``gradients`` draws.
        """
        optimiser = self.optimisers[name]
        for is_halved in (False, True):
            total = GradientSum()
            part: PartGradients | None = None
            try:
                for part in gradients(parts):
                    total.add(part)
                result = optimiser.update(total, num_sums)
                break
            except torch.OutOfMemoryError:
                if is_halved:
                    raise
            del total, part  # nothing may hold tensors of the failed pass
            parts = halves_of(parts)
        metrics[f"{name}_grad_norm"] = result.grad_norm
        skipped = metrics["skipped_updates"]
        metrics["skipped_updates"] = result.skipped if skipped is self.zero else skipped + result.skipped
        return result, parts

    def update_by_loss(
        self,
        name: str,
        loss_of: Callable[[PartT], Tensor],
        parts: list[PartT],
        total: Tensor | float,
        metrics: dict[str, Tensor],
    ) -> Tensor:
        """Loss of one update, for a loss without noise: sum over parts and ranks, divided by ``total``. -> ()."""
        total = total if isinstance(total, Tensor) else torch.full((), float(total), device=self.device)

        def gradients(part: PartT) -> PartGradients:
            loss = loss_of(part)
            gradients = self.optimisers[name].gradients(loss, total.reciprocal())
            return PartGradients(gradients, (loss.detach() / total).unsqueeze(0))

        result, _ = self.update(name, lambda parts: self.pool.map(gradients, parts), parts, metrics)
        return result.sums[0]

    # ---- Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """State from which training resumes.

        ``torch.load(weights_only=True)`` reads it. Tensors are not copied: save them before the next step.
        """
        return {
            "networks": {name: module.state_dict() for name, module in self._modules.items()},
            "optimisers": {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()},
            "counters": {name: getattr(self, name) for name in self.COUNTERS},
            "recipe": {name: getattr(self.config, name) for name in self.RECIPE},
        }

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load the networks of ``state_dict()`` only. Raises torch's KeyError or RuntimeError if they differ."""
        for name, module in self._modules.items():
            module.load_state_dict(state["networks"][name])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from ``state_dict()``. Raises torch's KeyError, RuntimeError or ValueError if the networks differ.

        With a changed RECIPE weights and step are kept; each change is logged.
        """
        self.load_weights(state)
        for name in self.COUNTERS:
            setattr(self, name, state["counters"][name])
        for name in self.RECIPE:
            before, now = state["recipe"][name], getattr(self.config, name)
            if before != now:
                message = "%s.%s was %s in the checkpoint and is %s now; the weights are kept"
                logger.warning(message, self.SECTION, name, before, now)
        for name, optimiser in self.optimisers.items():
            optimiser.load_state_dict(state["optimisers"][name])
