"""Settings of the likelihood model, with the reason for each default in ``docs/explanation/likelihood.md``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from common.config import ConfigBranch
from workloads.muons.models.config import MuonNetworkConfig


class LikelihoodNetworkConfig(MuonNetworkConfig):
    """Sizes and shapes of the likelihood model's networks: a checkpoint fits only the network it was written with."""

    energy_cut_gev: float = Field(1.0, ge=0)
    """Lowest energy that the simulation recorded, in GeV: no muon below is generated, and the first batch must have
    none. 0: unknown."""

    latent: int = Field(2, ge=1)
    """Number of random numbers that the muons of an event share, such as the height where their shower began."""

    components: int = Field(8, ge=1)
    """Number of normal distributions in each mixture."""

    hidden: int = Field(64, ge=1)
    """Width of every hidden layer, except for the count head's."""

    coupling: bool = False
    """Draw half of an event's muons given the other half, for showers whose muons share more than ``latent`` random
    numbers can say, such as a limited sum of their energies."""


class LikelihoodConfig(ConfigBranch):
    """Training of the likelihood model, and sampling from it."""

    network: LikelihoodNetworkConfig = LikelihoodNetworkConfig()
    """Sizes and shapes."""

    max_count: int = Field(100_000, ge=1)
    """Most muons in a generated event; larger events are truncated."""

    likelihood_lr: float = Field(8e-3, gt=0)
    """Learning rate of the muons' densities (Adam), the highest of the schedule."""

    count_lr: float = Field(1.6e-2, gt=0)
    """Learning rate of the count head, the highest of the schedule."""

    schedule: Literal["constant", "one_cycle"] = "one_cycle"
    """Schedule of both learning rates: ``one_cycle`` rises over the first twentieth of ``schedule_steps`` and falls to
    0.1 % along a cosine."""

    schedule_steps: int = Field(0, ge=0)
    """Optimiser steps of the cycle, usually those of the run. 0: the learning rates stay constant, and the trainer's
    log warns of it."""

    warmup_steps: int = Field(0, ge=0)
    """Optimiser steps over which both learning rates rise from 0 at the start of a run."""

    muon_weight: float = Field(0.75, ge=0, le=1)
    """Exponent of an event's weight N^x in the loss, for N muons: 0 is the mean over events, 1 the mean over muons."""

    max_muons: int = Field(2000, ge=0)
    """Most muons of an event in training: a random subset of larger events in each step, which has a likelihood of its
    own. The count head, the input N and the event's weight keep the whole number. 0: all."""

    gradient_clip: float = Field(0.0, ge=0)
    """Largest gradient norm of an update, per network. 0: no clipping."""

    average_decay: float = Field(0.998, ge=0, lt=1)
    """Decay per step of the running mean of the densities' weights, from which events are generated.
    0: generate from the latest weights."""

    chunk_particles: int = Field(0, ge=0)
    """Particles in one pass through the networks: the events of a batch are joined, and processed in chunks of whole
    events, which gives the same gradients with better use of the cache. 0: 4,096 on a CPU with a
    second-level cache of 1 MiB a core, and in proportion to it; on a GPU a power of two that needs at most half of its
    memory."""

    @model_validator(mode="after")
    def _combinations_make_sense(self) -> LikelihoodConfig:
        """Raise ValueError, with both fields, both values and the fix, for a setting that another one cancels."""
        if self.schedule == "constant" and self.schedule_steps > 0:
            raise ValueError(
                f"schedule_steps = {self.schedule_steps} has no effect with schedule = 'constant':"
                " set schedule = 'one_cycle', or schedule_steps = 0"
            )
        return self

    def warnings(self) -> list[str]:
        """Warnings, one line for each setting that is allowed but was measured, or is known, to train badly."""
        if self.schedule_steps == 0 and self.likelihood_lr > 2e-3:
            return [
                f"schedule_steps = 0 keeps likelihood_lr = {self.likelihood_lr:g} to the end, which is far too fast"
                " there: set schedule_steps to the steps of the run"
            ]
        return []
