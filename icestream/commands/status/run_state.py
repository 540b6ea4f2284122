"""State of a run, from the process that holds its lock and from its status files. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.durations import duration
from common.status import RunStatus, TrainerStatus

State = Literal["new", "starting", "running", "stopping", "finished", "interrupted", "failed", "killed", "unknown"]
ALIVE: tuple[State, ...] = ("starting", "running", "stopping")
SILENT_S = 60.0
"""Age of the newest status from which a run that can't be seen from here is not said to run."""
_END: dict[str, State] = {"finished": "finished", "stopped": "interrupted"}


@dataclass(frozen=True)
class Occupant:
    """Process that holds a run's lock or was killed while it did: `icestream run`, else a service started by hand."""

    text: str
    """Command, process id and host, for people."""
    is_alive: bool | None
    """None: it can't be seen from here."""


def state_of(
    occupant: Occupant | None, run: RunStatus | None, trainer: TrainerStatus | None, *, silent_s: float | None
) -> tuple[State, str]:
    """State and its reason.

    ``trainer``: None if it has not reported in this session. ``silent_s``: age of the newest status; None without one.
    """
    if occupant is not None and occupant.is_alive is False:
        return "killed", f"{occupant.text}, is gone and recorded no end: it was killed, or its machine went down"
    if occupant is not None:
        if occupant.is_alive is None and (silent_s is None or silent_s > SILENT_S):
            age = f" for {duration(silent_s)}" if silent_s is not None else ""
            return "unknown", f"no sign of life{age} from {occupant.text}; it can't be seen from here"
        if (run is not None and run.state == "stopping") or (trainer is not None and trainer.state in _END):
            return "stopping", occupant.text
        if trainer is None or trainer.state == "starting":
            return "starting", occupant.text
        return "running", occupant.text
    if run is not None and run.state not in ("running", "stopping"):
        return run.state, run.error
    if run is not None:
        return "killed", "`icestream run` recorded no end: its machine went down, or its disk was full"
    if trainer is None:
        return "new", "no service has reported yet"
    if trainer.state in _END:
        return _END[trainer.state], ""
    return "unknown", f"the trainer's last state was {trainer.state!r}"
