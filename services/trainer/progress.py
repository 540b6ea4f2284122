"""Progress of training: plan, step, seconds, position in the stream. The part of a checkpoint that needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from common.errors import BadInputError
from services.trainer.stream.sharded_position import read_position, start_of

NEW_PLAN_REMEDY = (
    "(its inputs, seed or stream settings were others): resume with those, or use --new-plan to keep its weights and "
    "begin this plan, or --fresh to start over"
)


class TrainingProgress:
    """Progress of a training run. Mutable: the loop advances it, a checkpoint stores it."""

    def __init__(self, plan_hash: str, *, shards: int = 1) -> None:
        self.plan_hash = plan_hash
        self.step = 0
        self.seconds = 0.0
        """Training time over all restarts."""
        self.position = start_of(shards)
        self.audit_bytes: tuple[int, ...] = ()
        """Size of each audit file: see audit.py."""
        self.shown: tuple[str, ...] = ()
        """Metrics shown in the status file."""

    def checkpoint(self, config_json: str) -> dict[str, Any]:
        """Content of a checkpoint."""
        return {
            "plan_hash": self.plan_hash,
            "step": self.step,
            "seconds": self.seconds,
            "position": self.position.model_dump_json(),
            "audit_bytes": list(self.audit_bytes),
            "config": config_json,
        }

    def restore(self, checkpoint: Mapping[str, Any], *, accept_new_plan: bool) -> None:
        """Continue from a checkpoint.

        Raises BadInputError if it belongs to another plan; with ``accept_new_plan`` the stream restarts, and the
        training so far still counts.
        """
        self.step = checkpoint["step"]
        self.seconds = checkpoint["seconds"]
        num_shards = len(self.position.shards)
        try:
            self.position = read_position(checkpoint["position"])
        except ValidationError:
            raise BadInputError(
                f"the checkpoint at step {self.step} was written by another version of icestream: use --fresh"
            ) from None
        self.audit_bytes = tuple(checkpoint["audit_bytes"])
        if checkpoint["plan_hash"] != self.plan_hash:
            if not accept_new_plan:
                raise BadInputError(f"the checkpoint at step {self.step} belongs to another plan {NEW_PLAN_REMEDY}")
            # Each shard keeps the files of its folder, as many as before.
            each = len(self.audit_bytes) // len(self.position.shards)
            sizes = self.audit_bytes[: each * num_shards]
            self.audit_bytes = (*sizes, *(0,) * (each * num_shards - len(sizes)))
            self.position = start_of(num_shards, self.position)
