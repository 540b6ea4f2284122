"""Training step of the model of sets."""

from __future__ import annotations

from workloads.direction.models.sets.config import SetsConfig
from workloads.direction.models.sets.model import SetsNetwork
from workloads.direction.models.task import DirectionTask


class SetsTask(DirectionTask[SetsConfig]):
    """See DirectionTask."""

    SECTION = "trainer.sets"

    def build(self, config: SetsConfig) -> SetsNetwork:
        """Network with new weights."""
        return SetsNetwork(config)
