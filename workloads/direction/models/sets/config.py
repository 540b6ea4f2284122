"""Settings of the model `sets`."""

from __future__ import annotations

from workloads.direction.models.config import DirectionConfig


class SetsConfig(DirectionConfig):
    """Training of the model `sets`."""
