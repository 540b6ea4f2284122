"""End of a run: whether anything is left to do, and what to do next. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.own_code import is_own
from common.status import TrainerStatus
from common.summary import ExitStatus
from services.config.root import Config
from services.config.trainer import NO_MODEL
from workloads import registry

_OF_THE_PLAN = ("input", "workload", "seed", "source", "stream")
_OTHER_WORK = ("outputs",)
"""Branches whose change is work for a finished run."""


def already_complete(former: Mapping[str, Any], config: Config, status: TrainerStatus | None) -> str:
    """Line about a finished run that the settings do not prolong; empty if there may be something to do.

    ``former``: configuration of the run as stored, ``status``: that of its last trainer.
    """
    if status is None or status.state != "finished":
        return ""
    now = config.model_dump(mode="json")
    model = former.get("trainer", {}).get("model")
    if model != config.trainer.model or any(former.get(key) != now[key] for key in (*_OF_THE_PLAN, *_OTHER_WORK)):
        return ""
    if former["trainer"].get(model) != now["trainer"].get(model):  # refused or taken by the trainer, which knows why
        return ""
    if status.max_steps and status.step >= status.max_steps:
        is_longer = config.trainer.max_steps == 0 or config.trainer.max_steps > status.step
        remedy = "Raise --max-steps to continue."
    else:  # the plan ended
        is_longer = config.epochs == 0 or config.epochs > max(1, status.epochs)
        remedy = "Raise --epochs to continue."
    return "" if is_longer else f"Already complete ({status.step:,} steps). {remedy}"


def next_line(run_dir: Path, config: Config, exit_status: ExitStatus) -> str:
    """Command that comes next; empty if the error says what to do."""
    place = shlex.quote(str(run_dir))
    if exit_status == "interrupted":
        named = f" --model {config.trainer.model}" if is_own(config.trainer.model) else ""
        return f"Resume: icestream run --run-dir {place}{named}"
    if exit_status != "finished" or config.trainer.model == NO_MODEL:
        return ""
    if is_own(config.trainer.model):  # no command can evaluate it
        return f"Next, in Python: icestream.load({str(run_dir)!r}, model={config.trainer.model!r})"
    if "evaluate" in registry.verbs(config.workload):
        return f"Next: icestream evaluate {place} -i HELD_OUT_FILES"
    return ""
