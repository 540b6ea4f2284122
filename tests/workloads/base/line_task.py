"""The smallest task: a line through points, whose slope is learned with Adam and whose offset with SGD."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.optim import SGD, Adam

from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.optimiser import AveragedWeights, PartGradients, uncompiled
from workloads.base.step import BaseTask

CPU = torch.device("cpu")
CONTEXT = StepContext(CPU, seed=1)


class LineConfig(BaseModel):
    schedule: str = "constant"
    schedule_steps: int = 0
    warmup_steps: int = 0
    chunk_particles: int = 0
    gradient_clip: float = 0.0
    optimiser: str = "adam"
    noise: float = 0.0


class LineTask(BaseTask[LineConfig, Microbatch]):
    SECTION = "trainer.line"
    METRICS = ("slope_loss", "offset_loss", "slope_grad_norm", "offset_grad_norm", "skipped_updates")
    RECIPE = ("optimiser", "schedule", "schedule_steps")

    def __init__(
        self, config: LineConfig, context: StepContext = CONTEXT, *, parallel: bool = True, particle_bytes: int = 0
    ) -> None:
        with context.initial_weights():
            self.slope = nn.Linear(2, 1, bias=False)
            self.offset = nn.Linear(1, 1)
        self.averaged = AveragedWeights(self.slope, 0.9)
        adam = uncompiled(Adam)(self.slope.parameters(), 0.1, fused=True)
        sgd = uncompiled(SGD)(self.slope.parameters(), 0.1, fused=True)
        by_sgd = uncompiled(SGD)(self.offset.parameters(), 0.01, momentum=0.5, fused=True)
        super().__init__(
            config,
            context,
            {"slope": self.slope, "slope_average": self.averaged.average, "offset": self.offset},
            {"slope": (self.slope, adam if config.optimiser == "adam" else sgd), "offset": (self.offset, by_sgd)},
            parallel=parallel,
            particle_bytes=particle_bytes,
        )
        self.seen: list[list[int]] = []
        """Particles of each part that an update was computed of."""
        self.before_part: Callable[[Microbatch], None] = lambda part: None

    def train(self, batch: Batch, parts: list[Microbatch], metrics: dict[str, Tensor]) -> None:
        slope, total = self.optimisers["slope"], self.context.total(batch.num_particles).clamp_min(1)

        def gradients(part: Microbatch, noise_P: Tensor) -> PartGradients:
            self.before_part(part)
            loss = (self.error(part) + self.config.noise * noise_P).square().sum() / total
            return PartGradients(slope.gradients(loss), torch.stack([loss.detach()]))

        def over_parts(parts: list[Microbatch]) -> Iterator[PartGradients]:
            self.seen.append([part.num_particles for part in parts])
            noise = (torch.randn(part.num_particles, generator=self.noise.of(part)) for part in parts)
            return self.pool.map(gradients, parts, noise)

        result, _ = self.update("slope", over_parts, parts, metrics)
        self.averaged.update(self.steps + 1)
        metrics["slope_loss"] = result.sums[0]
        metrics["offset_loss"] = self.update_by_loss(
            "offset", lambda part: self.error(part).square().sum(), parts, total, metrics
        )

    def error(self, part: Microbatch) -> Tensor:
        x_P2, y_P = part.particle_columns["x"], part.particle_columns["y"]
        line_P: Tensor = self.slope(x_P2).squeeze(1) + self.offset(torch.ones(1))
        return line_P - y_P


def make_line(context: StepContext = CONTEXT, **settings: Any) -> LineTask:
    return LineTask(LineConfig(**settings), context)


def points(*counts: int, seed: int = 0, shard: int = 0, number: int = 0) -> Microbatch:
    """An event of so many points for each of ``counts``, on y = 2 x - 1, with some noise."""
    random = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *counts]).cumsum(0)
    x_P2 = torch.randn(sum(counts), 2, generator=random)
    y_P = 2 * x_P2[:, 0] - 1 + 0.1 * torch.randn(sum(counts), generator=random)
    return Microbatch(
        epoch=0,
        unit=0,
        index=0,
        offsets_E1=offsets,
        host_offsets_E1=offsets.numpy(),
        event_columns={},
        particle_columns={"x": x_P2, "y": y_P},
        num_events=len(counts),
        num_particles=sum(counts),
        shard=shard,
        number=number,
    )


def batch_of(*counts: int, seed: int = 0) -> Batch:
    return Batch((points(*counts, seed=seed),))


def weights(task: LineTask) -> list[Tensor]:
    return [one.detach().clone() for network in (task.slope, task.offset) for one in network.parameters()]
