"""Settings of the direction models, with the reason for each default in ``docs/explanation/direction.md``."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from workloads.base.training import StepSettings


class DirectionConfig(StepSettings):
    """Settings that every direction model has. The learning rate falls along a cosine, after a warm-up."""

    schedule: ClassVar[str] = "cosine"
    gradient_clip: ClassVar[float] = 1.0
    """Largest gradient norm; the figures of docs/explanation/direction.md were measured with it."""

    geometry: str = ""
    """Positions of the sensors: a `sensor_geometry.csv`. Empty: the file of this name beside the run's local inputs.
    It is stored in checkpoints."""

    symmetry: Literal["rotation", "none"] = "rotation"
    """Symmetry of detector and ice by which events vary in training. `rotation`: a random rotation about the vertical
    axis, and a mirror. `none`: for detectors and ice in which that matters."""

    learning_rate: float = Field(1.5e-3, gt=0)
    """Learning rate of AdamW at the start of the schedule."""

    warmup_steps: int = Field(200, ge=0)
    """Optimiser steps over which the learning rate rises from 0 at the start of a run: about a twentieth of it."""

    energy: bool = False
    """Predict the neutrino's energy, too: lg(E / GeV) with its error. A checkpoint fits only the value that it was
    written with."""


class SetsConfig(DirectionConfig):
    """Training of the model of sets, whose sizes are constants of its module."""


class TransformerConfig(DirectionConfig):
    """Training of the models `transformer` and `flat`: `--model` alone tells which."""

    size: Literal["0.18m", "0.5m", "1.6m", "5m", "10m"] = "0.18m"
    """Parameters of the network, in millions. A checkpoint fits only the size that it was written with."""


CONFIGS: dict[str, type[DirectionConfig]] = {
    "sets": SetsConfig,
    "transformer": TransformerConfig,
    "flat": TransformerConfig,
}
"""Settings of each model, by its name."""
