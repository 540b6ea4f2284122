"""Group of data-parallel trainers on one machine: they start, end and restart together."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Mapping
from pathlib import Path

from common.errors import USER_ERROR_EXIT_CODE
from common.file_lock import LOCKS_FOLDER
from common.rank_variables import RANKS_FILE_VARIABLE

_MEETING = "ranks-"

GROUP_END_S = 15.0
"""Time for the others to end by themselves once one has died: they determine which rank is gone, which takes 3 s."""


def trainer_names(count: int) -> list[str]:
    """Process names of the trainers by rank: trainer, trainer-1, … None if the caller of icestream.stream trains."""
    return ["trainer", *(f"trainer-{rank}" for rank in range(1, count))][:count]


def rank_environment(name: str, count: int, meeting: Path) -> dict[str, str]:
    """torchrun's variables for one of ``count`` trainers, except the port: the rendezvous is a file of the owner's.

    Any user of the machine could connect to a port of the loopback interface.
    """
    rank = name.partition("-")[2] or "0"
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        RANKS_FILE_VARIABLE: str(meeting),
    }


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
