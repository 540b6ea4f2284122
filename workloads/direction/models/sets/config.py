"""Settings of the model of sets, with the reason for each default in ``docs/explanation/direction.md``."""

from __future__ import annotations

from pydantic import Field

from common.config import ConfigBranch
from workloads.direction.models.config import DirectionConfig


class SetsNetworkConfig(ConfigBranch):
    """Sizes and shapes of the two branches: a checkpoint fits only the network it was written with."""

    max_sensors: int = Field(96, ge=1)
    """Most sensors of an event that the branches see: those with clean pulses first, by charge, then those nearest to
    them."""

    hidden: int = Field(64, ge=1)
    """Width of the branch that doesn't know the track fit."""

    layers: int = Field(5, ge=1)
    """Number of its exchanges: the sensors of an event are pooled, and the result enters each of them."""

    trust_hidden: int = Field(32, ge=1)
    """Width of the branch that weighs and corrects the track fit."""

    trust_layers: int = Field(2, ge=1)
    """Number of its exchanges."""


class SetsConfig(DirectionConfig):
    """Training of the model of sets."""

    network: SetsNetworkConfig = SetsNetworkConfig()
    """Sizes and shapes."""
