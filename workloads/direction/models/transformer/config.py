"""Settings of the model `transformer`."""

from __future__ import annotations

from workloads.direction.models.config import DirectionConfig


class TransformerConfig(DirectionConfig):
    """Training of the model `transformer`."""
