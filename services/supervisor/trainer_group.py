"""Group of data-parallel trainers, on one machine or on several nodes: they start, end and restart together."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common.attempt import RunAttempt
from common.errors import USER_ERROR_EXIT_CODE
from common.file_lock import LOCKS_FOLDER
from common.rank_variables import RANKS_FILE_VARIABLE

_MEETING = "ranks-"

GROUP_END_S = 15.0
"""Time for the others to end by themselves once one has died: they determine which rank is gone, which takes 3 s."""


def trainer_names(count: int) -> list[str]:
    """Process names of the trainers by rank: trainer, trainer-1, … None if the caller of icestream.stream trains."""
    return ["trainer", *(f"trainer-{rank}" for rank in range(1, count))][:count]


class TrainerGroup(Protocol):
    """Trainers of one run that start and end together, as seen by the supervisor of those on this machine."""

    @property
    def end_s(self) -> float:
        """Time for the others here to end by themselves once one has died."""

    def environment(self, name: str) -> dict[str, str]:
        """Variables of one trainer, by its process name; those of the first one begin a new group."""


class LocalGroup:
    """Group of ``count`` trainers, all of them on this machine: torchrun's variables, except the port.

    The rendezvous is a file of the owner's: any user of the machine could connect to a port of the loopback interface.
    """

    def __init__(self, run_dir: Path, count: int) -> None:
        self.end_s = GROUP_END_S
        self._run_dir = run_dir
        self._count = count
        self._meeting = Path()

    def environment(self, name: str) -> dict[str, str]:
        """See TrainerGroup; nothing for a single trainer."""
        if self._count == 1:
            return {}
        rank = local_rank(name)
        if rank == 0:
            self._meeting = new_meeting(self._run_dir)
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._count),
            "LOCAL_WORLD_SIZE": str(self._count),
            RANKS_FILE_VARIABLE: str(self._meeting),
        }


@dataclass(frozen=True)
class NodeGroup:
    """Group of the trainers of all nodes, of which ``count`` are on this one: torchrun's variables."""

    count: int
    node: int
    nodes: int
    host: str
    """Host of node 0, where the first trainer listens."""
    port: int
    attempt: RunAttempt
    end_s: float = 5.0

    def environment(self, name: str) -> dict[str, str]:
        """See TrainerGroup."""
        rank = local_rank(name)
        return {
            "RANK": str(self.node * self.count + rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.nodes * self.count),
            "LOCAL_WORLD_SIZE": str(self.count),
            "GROUP_RANK": str(self.node),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RESTART_COUNT": str(self.attempt.number),
        }


def local_rank(name: str) -> int:
    """Rank, on this machine, of the trainer with this process name."""
    return int(name.partition("-")[2] or "0")


def new_meeting(run_dir: Path) -> Path:
    """Rendezvous file of a new group of trainers; the files of former groups are deleted."""
    folder = run_dir / LOCKS_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    for former in folder.glob(f"{_MEETING}*"):
        former.unlink(missing_ok=True)
    return folder / f"{_MEETING}{secrets.token_hex(8)}"


def cause_of(exit_codes: Mapping[str, int]) -> str:
    """Process whose end ended the group: a user's mistake first, then a signal, then an error; the first, if all are 0.

    A rank that lost another one ends with exit code 1, so that it is never named if there is a better reason.
    """

    def weight(name: str) -> int:
        code = exit_codes[name]
        if code == USER_ERROR_EXIT_CODE:
            return 0
        if code < 0:
            return 2 if code == -signal.SIGTERM else 1
        return 3 if code else 4

    return min(exit_codes, key=weight)
