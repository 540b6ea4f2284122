"""Panel of the likelihood model: the common panel, with another score."""

from __future__ import annotations

from dataclasses import replace

from workloads.base.batch import Batch
from workloads.base.evaluator import Evaluation
from workloads.muons.models.panel import SCORE, MuonPanel


class LikelihoodPanel(MuonPanel):
    """Panel whose score is the held-out negative log likelihood, nats per event: it sees all there is to see."""

    def evaluate(self, block: Batch) -> Evaluation | None:
        """See MuonPanel."""
        found = super().evaluate(block)
        if found is None:
            return None
        return replace(found, scalars={**found.scalars, SCORE: found.scalars["train/held_out_nll"]})
