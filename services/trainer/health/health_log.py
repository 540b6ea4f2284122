"""Health log `health.jsonl` in the run directory: the steps that were not healthy, with the sources of their data."""

from __future__ import annotations

import json
import math
import os
from contextlib import nullcontext
from pathlib import Path

from common.atomic_file import Publishing
from services.trainer.health.health import Verdict
from services.trainer.health.recent_steps import TakenStep

HEALTH_FILE = "health.jsonl"


class HealthLog:
    """Append-only log: restarts and repeated steps add to it."""

    def __init__(self, path: Path, publishing: Publishing = nullcontext) -> None:
        """``publishing``: context of each line, of several nodes."""
        self.path = path
        self._publishing = publishing

    def write(self, taken: TakenStep, verdict: Verdict, action: str) -> None:
        """Write one line for a step. Numbers that JSON can't represent become texts: "nan", "inf"."""
        metrics = {name: value if math.isfinite(value) else str(value) for name, value in sorted(taken.metrics.items())}
        line = {
            "step": taken.step,
            "verdict": verdict.health.label,
            "reasons": verdict.reasons,
            "action": action,
            "metrics": metrics,
            "batch": [place._asdict() for place in taken.places],
        }
        with self._publishing():
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(json.dumps(line) + "\n")
