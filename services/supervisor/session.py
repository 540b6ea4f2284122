"""Data that the supervisor of a session shows, returns, and is given of other nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from common.summary import ExitStatus
from services.supervisor.trainer_group import TrainerGroup


@dataclass(frozen=True)
class Processes:
    """Running processes."""

    pids: Mapping[str, int]
    """Living processes by name."""
    restarts: Mapping[str, int]
    """Number of restarts by service."""
    stopping: bool = False
    """True from the moment at which the session begins to end."""


@dataclass(frozen=True)
class SessionOutcome:
    """Outcome of a session."""

    exit_status: ExitStatus
    exit_code: int
    error: str | None
    restarts: Mapping[str, int]
    seconds: float


class RunningNode(Protocol):
    """One of several nodes, for its supervisor."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of all its processes."""

    @property
    def group(self) -> TrainerGroup:
        """Trainers of all nodes."""

    def ending(self) -> tuple[int, str] | None:
        """Exit code and reason, if this node has to end because of another one."""

    def end_after_trainers(self, exit_code: int, how: str, error: str) -> tuple[int, str]:
        """Exit code and reason of this node after its trainers; ``how`` one of them ended, in words, and its error."""
