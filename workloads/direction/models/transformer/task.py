"""Training step of the transformer."""

from __future__ import annotations

from workloads.direction.models.task import DirectionTask
from workloads.direction.models.transformer.config import TransformerConfig
from workloads.direction.models.transformer.model import TransformerNetwork


class TransformerTask(DirectionTask[TransformerConfig]):
    """See DirectionTask."""

    SECTION = "trainer.transformer"

    def build(self, config: TransformerConfig) -> TransformerNetwork:
        """Network with new weights."""
        return TransformerNetwork(config)
