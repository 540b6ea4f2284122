"""What can happen to a process, and at which instant of its work: the fault of a test, and the proof that it happened.

A test starts the services through `faulty_services.py`, which reads the fault from the environment, wraps the function
at whose call the instant is, and runs the real command. The first process that reaches the instant writes the marker,
meets the fault, and is the last to do so. The services themselves know nothing of it.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "FAULT"
"""Environment variable that holds the fault; not ICESTREAM_…, which would be a setting."""


@dataclass(frozen=True)
class Fault:
    """One process of ``verb`` gets ``signal`` when it reaches ``instant`` for the ``nth`` time (counted from 1)."""

    verb: str
    instant: str
    """A key of `faulty_services.INSTANTS`."""
    signal: str = "SIGKILL"
    nth: int = 1
    marker: str = ""
    """File that says who met the fault: there is none until it has been met."""

    def environment(self, folder: Path) -> dict[str, str]:
        """Of the process that shall meet the fault, or start those that may; the marker will be in ``folder``."""
        return {VARIABLE: json.dumps(asdict(self) | {"marker": str(folder / "fault.json")})}


@dataclass(frozen=True)
class Met:
    """The fault happened."""

    pid: int
    told: str
    """What the process was about to do."""


def met(folder: Path) -> Met | None:
    """Who met the fault; None as long as nobody has."""
    try:
        return Met(**json.loads((folder / "fault.json").read_text()))
    except FileNotFoundError:
        return None


def meet(fault: Fault, told: str) -> None:
    """Do to this process what the fault says, unless it was done to one before."""
    marker = Path(fault.marker)
    draft = marker.with_name(f"{marker.name}.{os.getpid()}")
    draft.write_text(json.dumps({"pid": os.getpid(), "told": told}))
    try:
        os.link(draft, marker)  # whole, and only once
    except FileExistsError:
        return
    finally:
        draft.unlink()
    os.kill(os.getpid(), signal.Signals[fault.signal])
