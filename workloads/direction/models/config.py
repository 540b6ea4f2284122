"""Settings of the direction models, with the reason for each default in ``docs/explanation/direction.md``."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from common.config import ConfigBranch
from workloads.base.training import StepSettings


class DirectionConfig(StepSettings):
    """Settings that every direction model has. The learning rate falls along a cosine, after a warm-up."""

    schedule: ClassVar[str] = "cosine"
    gradient_clip: ClassVar[float] = 1.0
    """Of one network with one loss; the figures of docs/explanation/direction.md were measured with it."""

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


class SetsConfig(DirectionConfig):
    """Training of the model of sets, whose sizes are constants of its module."""


class TransformerNetworkConfig(ConfigBranch):
    """Sizes of the transformer: a checkpoint fits only the network it was written with.

    Parameters, the other settings at their defaults:

    - 180,000: the defaults.
    - 1.6 million: hidden = 128, heads = 8, layers = 3, refining_layers = 3.
    - 5 million: hidden = 192, heads = 12, layers = 6, refining_layers = 3.
    """

    hidden: int = Field(48, ge=4)
    """Width of the tokens, one for each sensor. A multiple of ``heads``."""

    heads: int = Field(4, ge=1)
    """Attention heads of a layer."""

    layers: int = Field(2, ge=1)
    """Layers before the first prediction."""

    refining_layers: int = Field(2, ge=1)
    """Layers behind it, which see how light and times of the sensors differ from the first prediction."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> TransformerNetworkConfig:
        """Raise ValueError, with both fields, both values and the fix, for sizes that don't fit."""
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden = {self.hidden} is no multiple of heads = {self.heads}:"
                f" set hidden = {self.heads * -(-self.hidden // self.heads)}, or other heads"
            )
        return self


class TransformerConfig(DirectionConfig):
    """Training of the model `transformer`."""

    network: TransformerNetworkConfig = TransformerNetworkConfig()
    """Sizes."""


CONFIGS: dict[str, type[DirectionConfig]] = {"sets": SetsConfig, "transformer": TransformerConfig}
"""Settings of each model, by its name."""
