"""Provenance of an evaluation: model, settings and programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workloads.base.checkpoint import run_dir_of
from workloads.base.trained_run import TrainedRun
from workloads.base.versions import versions


def provenance(run: TrainedRun, packages: Sequence[str], **more: object) -> dict[str, Any]:
    """Provenance: the checkpoint, ``more``, and the versions of Python and ``packages``."""
    return {
        "checkpoint": str(run.path),
        "model": run.model,
        "step": run.step,
        "events_trained": run.events_trained,
        "config_digest": run.config_digest,
        **more,
        "versions": versions(packages),
    }


def default_output(checkpoint: Path) -> Path:
    """`RUN/evaluation`, or a folder beside a checkpoint that lies elsewhere."""
    run_dir = run_dir_of(checkpoint)
    return run_dir / "evaluation" if run_dir else checkpoint.parent / f"{checkpoint.stem}-evaluation"
