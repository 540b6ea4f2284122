"""What can happen to a process, and at which instant of its work: the fault of a test, and the proof that it happened.

`faulty_services.py` reads the fault from the environment of the process and wraps the function at whose call the
instant is, before the process runs its command. The first process that reaches the instant writes the marker,
meets the fault, and is the last to do so. Of several faults, each waits for the one before to be over. The services
themselves know nothing of it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
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
    after: str = ""
    """Marker of the fault before this one: it can't happen, and nothing counts, until that one is over."""

    def may_happen(self) -> bool:
        """The victim of the fault before is dead, or was continued."""
        before = _read(Path(self.after)) if self.after else None
        return not self.after or (before is not None and not is_stopped(before.pid))


def environment(faults: Sequence[Fault], folder: Path) -> dict[str, str]:
    """Of the processes that shall meet the faults, one after the other, or start those that may."""
    told, after = [], ""
    for index, fault in enumerate(faults):
        told.append(asdict(replace(fault, marker=str(_marker(folder, index)), after=after)))
        after = str(_marker(folder, index))
    return {VARIABLE: json.dumps(told)}


def faults_of(variable: str) -> list[Fault]:
    """Back from the environment."""
    return [Fault(**told) for told in json.loads(variable)]


@dataclass(frozen=True)
class Met:
    """The fault happened."""

    pid: int
    told: str
    """What the process was about to do."""


def met(folder: Path, index: int = 0) -> Met | None:
    """Who met that fault; None as long as nobody has."""
    return _read(_marker(folder, index))


def is_stopped(pid: int) -> bool:
    """True while a process is held by SIGSTOP, or by its tracer."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (FileNotFoundError, ProcessLookupError):
        return False


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


def _marker(folder: Path, index: int) -> Path:
    return folder / f"fault-{index}.json"


def _read(marker: Path) -> Met | None:
    try:
        return Met(**json.loads(marker.read_text()))
    except FileNotFoundError:
        return None
