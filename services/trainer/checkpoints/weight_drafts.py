"""Snapshots of a model in training: weights, optimisers, position; copied to the host, written in the background."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.trainer.checkpoints.checkpoint import Checkpoints
from services.trainer.checkpoints.guard import Guard
from services.trainer.checkpoints.snapshot import Snapshot, Snapshots, not_finite
from services.trainer.health.health import Health
from services.trainer.health.unhealthy import NotFinite
from services.trainer.state import TrainState
from services.trainer.stream.audit import Audit
from services.trainer.telemetry.telemetry import Telemetry


class WeightDrafts:
    """Source of snapshots with weights: see Drafts in commits.py."""

    def __init__(
        self,
        state: TrainState,
        checkpoints: Checkpoints,
        guard: Guard,
        telemetry: Telemetry,
        audit: Audit | None,
        config_json: str,
    ) -> None:
        self._state = state
        self._checkpoints = checkpoints
        self._guard = guard
        self._telemetry = telemetry
        self._audit = audit
        self._config_json = config_json
        self._snapshots = Snapshots(state.device)
        self.good = self._snapshot(Health.HEALTHY, self._audit_bytes())
        """State to which training rolls back: the start of this process, then the newest healthy checkpoint on disk."""

    def judge(self) -> None:
        """Raises Unhealthy if one of the last steps is critical: its weights are no target for a rollback."""
        self._guard.look()

    def take(self) -> WeightDraft:
        """Snapshot of training, marked with the health of the steps since the former draft."""
        health = self._guard.take_worst()
        return self._draft(health, self._telemetry.newest_score(), self._audit_bytes())

    def take_restored(self) -> WeightDraft:
        """Snapshot of the state after a rollback; the audit will be cut at its size there."""
        return self._draft(Health.HEALTHY, None, self._state.audit_bytes)

    def _draft(self, health: Health, score: float | None, audit_bytes: tuple[int, ...]) -> WeightDraft:
        return WeightDraft(
            self, self._checkpoints, self._snapshot(health, audit_bytes), health, score, self._state.step
        )

    def _audit_bytes(self) -> tuple[int, ...]:
        """Sizes of all audits, which are on disk on return."""
        return self._audit.commit() if self._audit else ()

    def _snapshot(self, health: Health, audit_bytes: tuple[int, ...]) -> Snapshot:
        self._state.audit_bytes = audit_bytes
        return self._snapshots.take(self._state.checkpoint(self._config_json) | {"health": health.label})


@dataclass(frozen=True)
class WeightDraft:
    """Snapshot with weights: see Draft in commits.py."""

    drafts: WeightDrafts
    checkpoints: Checkpoints
    snapshot: Snapshot
    health: Health
    score: float | None
    step: int

    def write(self) -> Path:
        """Write it. Raises NotFinite, or OSError."""
        self.snapshot.wait()
        wrong = not_finite(self.snapshot.content["task"])
        if wrong:
            raise NotFinite(f"the weights of step {self.step} are not finite: {', '.join(wrong[:5])}")
        return self.checkpoints.save(self.step, self.snapshot.content, self.score)

    def arrived(self) -> None:
        """Make it the rollback target if it is healthy."""
        if self.health is Health.HEALTHY:
            self.drafts.good = self.snapshot
