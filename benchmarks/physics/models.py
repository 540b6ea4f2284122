"""Models of the benchmark, with one interface: step on batches, then draw events.

Shapes: E events, P muons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from benchmarks.physics.data import batch_of
from benchmarks.physics.keys import likelihood_config, wgan_config
from benchmarks.physics.spec import Run
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.muons.metrics.bundles import Sample
from workloads.muons.models.likelihood import COUNT, LikelihoodTask
from workloads.muons.models.likelihood_densities import MuonSampler
from workloads.muons.models.wgan import WganTask

CPU = torch.device("cpu")


class Model(Protocol):
    """Model in training."""

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters of all networks."""

    def step(self, batch: Batch) -> object:
        """One optimiser step."""

    def sampler(self) -> MuonSampler:
        """Generator with the present weights."""

    def muon_nats(self, real: Sample) -> float | None:
        """Upper bound of -ln p(muons | primary, N), mean over events; None if the model has no likelihood.

        A density in lg(E / GeV), and in x and y in metres.
        """

    def state_dict(self) -> dict[str, Any]:
        """State that torch can save, and load with weights_only."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the weights from ``state_dict()`` of the same model; optimisers and steps start new."""


def make_model(run: Run) -> Model:
    """Untrained model. Raises pydantic's ValidationError for settings that do not exist."""
    return MODELS[run.model](run)


class _OfTask:
    """Part that is the same for each model."""

    task: WganTask | LikelihoodTask

    @property
    def num_parameters(self) -> int:
        """See Model."""
        return self.task.num_parameters

    def step(self, batch: Batch) -> object:
        """See Model."""
        return self.task.step(batch)

    def sampler(self) -> MuonSampler:
        """See Model."""
        return MuonSampler.from_state(self.task.config.network, self.task.state_dict(), CPU)

    def state_dict(self) -> dict[str, Any]:
        """See Model."""
        return {name: module.state_dict() for name, module in self.task.networks.modules().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Model."""
        for name, module in self.task.networks.modules().items():
            module.load_state_dict(state[name])


class Wgan(_OfTask):
    """WGAN of the project."""

    def __init__(self, run: Run) -> None:
        self.task: WganTask = WganTask(wgan_config(run), StepContext(CPU, run.seed, bf16=run.bf16))

    def muon_nats(self, real: Sample) -> None:
        """None: samples only."""


class Likelihood(_OfTask):
    """Likelihood model of the project."""

    def __init__(self, run: Run) -> None:
        self.task: LikelihoodTask = LikelihoodTask(likelihood_config(run), StepContext(CPU, run.seed, bf16=run.bf16))

    def muon_nats(self, real: Sample) -> float | None:
        """See Model."""
        found = self.task.held_out(batch_of(real))
        return float(found["nll"] - found["m_loss"])


class CountHeadAlone(Likelihood):
    """Count head, which all models have in common: the others' weights stay as they are, and its muons mean nothing."""

    def step(self, batch: Batch) -> object:
        """See Model."""
        self.task.observe(batch)
        parts = tuple(_without_muons(part) for part in batch.microbatches)
        return self.task.step(Batch(parts))

    def muon_nats(self, real: Sample) -> None:
        """None: they are not trained."""


def _without_muons(part: Microbatch) -> Microbatch:
    """Events with their counts, as if all of their muons had been thinned away."""
    nothing_E1 = np.zeros(part.num_events + 1, np.int64)
    return replace(
        part,
        offsets_E1=torch.from_numpy(nothing_E1),
        host_offsets_E1=nothing_E1,
        event_columns=part.event_columns | {COUNT: part.offsets_E1.diff().unsqueeze(1)},
        particle_columns={name: column[:0] for name, column in part.particle_columns.items()},
        num_particles=0,
    )


MODELS: dict[str, Callable[[Run], Model]] = {"wgan": Wgan, "likelihood": Likelihood, "count head": CountHeadAlone}
