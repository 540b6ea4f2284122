"""Training of a model of the user's own: `trainer.model = "package.module:TRAINING"`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common.errors import BadInputError
from common.own_code import import_own
from workloads.base.trained_run import TrainedRun
from workloads.base.training import Training

if TYPE_CHECKING:
    import torch

_PARTS = ("headline", "shown", "meaning_of_weights", "alarms", "task", "evaluator", "warnings")


def own_training(name: str) -> Training:
    """Training of that name; its module is imported. Raises BadInputError."""
    found: Training = import_own(name)
    if missing := [part for part in _PARTS if not hasattr(found, part)]:
        raise BadInputError(
            f"{name} is no training: it lacks {', '.join(missing)}; use icestream.ModuleTraining, or see"
            " workloads/base/training.py"
        )
    return found


def load_own(run: TrainedRun, task_state: dict[str, Any], device: torch.device, named: str | None) -> Any:
    """Trained model that its training's `load(section, task_state, device)` makes. Raises BadInputError.

    ``named``: the model as the caller names it: no module is imported because a checkpoint, which may be anybody's,
    names it.
    """
    if named != run.model:
        raise BadInputError(
            f"{run.path} is of a model of the user's own: if you trust its code, name it: model={run.model!r}"
        )
    training: Any = own_training(named)
    if not hasattr(training, "load"):
        raise BadInputError(f"{named} has no load(section, task_state, device)")
    return training.load(run.section, task_state, device)
