"""Floating-point operations of the steps of a process, from a count of its first one."""

from __future__ import annotations

from torch import Tensor

from workloads.base.batch import Batch
from workloads.base.flops import counted_flops
from workloads.base.task import Task


class FlopMeter:
    """Meter of this process: the first step is counted, later ones by their number of particles.

    Counting takes the first step about half as long again. It includes whatever the model does with a batch: several
    updates, generated events, penalties. Models whose work grows faster than their particles are off by that. With
    the model's setting `compile` nothing is counted: a counted step is computed as it is written, so that each restart
    would change bits.
    """

    def __init__(self) -> None:
        self.total = 0.0
        """Operations of all steps so far."""
        self._per_particle: float | None = None

    def step(self, task: Task, batch: Batch) -> dict[str, Tensor]:
        """Metrics of ``task.step(batch)``."""
        is_compiled = getattr(getattr(task, "config", None), "compile", False)
        if self._per_particle is None and batch.num_particles and not is_compiled:
            with counted_flops() as count:
                metrics = task.step(batch)
            self._per_particle = count.flops / batch.num_particles
        else:
            metrics = task.step(batch)
        self.total += (self._per_particle or 0.0) * batch.num_particles
        return metrics
