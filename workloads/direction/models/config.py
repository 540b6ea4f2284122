"""Settings common to the direction models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from common.config import ConfigBranch


class DirectionConfig(ConfigBranch):
    """Settings that every direction model has."""

    geometry: str = ""
    """Positions of the sensors: a `sensor_geometry.csv`. Empty: the file of this name beside the run's local inputs.
    It is stored in checkpoints."""

    symmetry: Literal["rotation", "none"] = "rotation"
    """Symmetry of detector and ice by which events vary in training. `rotation`: a random rotation about the vertical
    axis, and a mirror. `none`: for detectors and ice in which that matters."""

    learning_rate: float = Field(1.5e-3, gt=0)
    """Learning rate of AdamW at the start of the schedule."""

    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of AdamW's means of the gradient and of its square."""

    weight_decay: float = Field(0.02, ge=0)
    """Decay of the weights, by AdamW."""

    schedule: Literal["constant", "cosine"] = "cosine"
    """Schedule of the learning rate after the warm-up: ``cosine`` falls to 5 % over ``schedule_steps``."""

    schedule_steps: int = Field(0, ge=0)
    """Optimiser steps of the cosine, usually those of the run. 0: the learning rate stays constant."""

    warmup_steps: int = Field(200, ge=0)
    """Optimiser steps over which the learning rate rises from 0 at the start of a run."""

    gradient_clip: float = Field(1.0, ge=0)
    """Largest gradient norm of an update. 0: no clipping."""

    average_decay: float = Field(0.995, ge=0, lt=1)
    """Decay per step of the running mean of the weights, which directions are predicted with. 0: the latest weights."""

    chunk_particles: int = Field(0, ge=0)
    """Pulses in one pass through the network: a microbatch is processed in chunks of whole events, which gives the
    same gradients with better use of the cache. 0: 16,384 on a CPU, the whole microbatch on a GPU."""

    compile: bool = False
    """Compile the layers with `torch.compile`: takes a minute or more, and needs a cache directory that isn't mounted
    noexec, on the CPU a C++ compiler, on CUDA a C compiler and Python's headers. Not yet measured on a GPU."""

    @model_validator(mode="after")
    def _combinations_make_sense(self) -> DirectionConfig:
        """Raise ValueError, with both fields, both values and the fix, for a setting that another one cancels."""
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {self.betas}: both must be at least 0 and below 1, such as (0.9, 0.98)")
        if self.schedule == "constant" and self.schedule_steps > 0:
            raise ValueError(
                f"schedule_steps = {self.schedule_steps} has no effect with schedule = 'constant':"
                " set schedule = 'cosine', or schedule_steps = 0"
            )
        return self
