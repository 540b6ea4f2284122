"""Settings of the muon flow, with the reason for each default in ``docs/flow.md``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from common.config import ConfigBranch
from workloads.muons.models.config import MuonNetworkConfig


class FlowNetworkConfig(MuonNetworkConfig):
    """Sizes and shapes of the flow's networks: a checkpoint fits only the network it was written with."""

    hidden: int = Field(96, ge=1)
    """Width of the layers on single muons."""

    context: int = Field(96, ge=1)
    """Width of the context that connects the muons of an event."""

    layers: int = Field(2, ge=1)
    """Number of exchanges: the muons of an event are pooled, and the result enters each of them."""

    pooling: Literal["mean+max", "max", "mean", "sum"] = "mean+max"
    """Pooling of an event's muons to its context."""

    frequencies: int = Field(8, ge=1)
    """Number of inputs cos(π k t), k = 1 … this number, that encode the time."""

    shared_noise: float = Field(0.0, ge=0, lt=1)
    """Fraction of the noise's variance that is common to the muons of an event, the source of their correlation.
    Above 0 it helps events of 100 muons and more, at a price: docs/flow.md."""


class FlowConfig(ConfigBranch):
    """Training of the muon flow, and sampling from it."""

    network: FlowNetworkConfig = FlowNetworkConfig()
    """Sizes and shapes."""

    sampling_steps: int = Field(4, ge=1)
    """Steps from noise to muons, each of two evaluations of the network (the midpoint rule). More are slower and more
    accurate. May be changed after training."""

    max_count: int = Field(100_000, ge=1)
    """Most muons in a generated event; larger events are truncated."""

    max_deviation: float = Field(10.0, gt=0)
    """Bound on a generated feature, in standard deviations of the training data from their mean."""

    flow_lr: float = Field(2e-3, gt=0)
    """Learning rate of the flow (Adam) at the start of the schedule."""

    count_lr: float = Field(2e-3, gt=0)
    """Learning rate of the count head at the start of the schedule."""

    betas: tuple[float, float] = (0.9, 0.99)
    """Decay of Adam's means of the gradient and of its square, for the flow."""

    schedule: Literal["constant", "cosine"] = "cosine"
    """Schedule of both learning rates after the warm-up: ``cosine`` falls to 5 % over ``schedule_steps``."""

    schedule_steps: int = Field(0, ge=0)
    """Optimiser steps of the cosine, usually those of the run. 0: the learning rates stay constant."""

    warmup_steps: int = Field(100, ge=0)
    """Optimiser steps over which both learning rates rise from 0 at the start of a run."""

    muon_weight: float = Field(0.5, ge=0, le=1)
    """Exponent of an event's weight N^x in the loss, for N muons: 0 is the mean over events, 1 the mean over muons."""

    max_muons: int = Field(0, ge=0)
    """Most muons of an event in the training of the flow: a random subset of larger events in each step. The count
    head, and the flow's input N, keep the whole number. 0: all."""

    pair_by_energy: bool = True
    """Pair the noise with the muons of an event by rank of the energy: paths cross less."""

    gradient_clip: float = Field(0.0, ge=0)
    """Largest gradient norm of an update, per network. 0: no clipping."""

    average_decay: float = Field(0.999, ge=0, lt=1)
    """Decay per step of the running mean of the flow's weights, from which events are generated.
    0: generate from the latest weights."""

    chunk_particles: int = Field(0, ge=0)
    """Particles in one pass through the networks: a microbatch is processed in chunks of whole events, which gives the
    same gradients with better use of the cache. 0: 2,048 on a CPU, the whole microbatch on a GPU."""

    @model_validator(mode="after")
    def _combinations_make_sense(self) -> FlowConfig:
        """Raise ValueError, with both fields, both values and the fix, for a setting that another one cancels."""
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {self.betas}: both must be at least 0 and below 1, such as (0.9, 0.99)")
        if self.schedule == "constant" and self.schedule_steps > 0:
            raise ValueError(
                f"schedule_steps = {self.schedule_steps} has no effect with schedule = 'constant':"
                " set schedule = 'cosine', or schedule_steps = 0"
            )
        return self
