"""The trainers of one machine that learn together: they start, end and start again together."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping

from common.errors import USER_ERROR_EXIT_CODE

RANK_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"),
)
"""What torchrun sets. `icestream run` may itself have been started by something that sets them: that is not for us."""

GROUP_END_S = 15.0
"""How long the others may take to end by themselves once one has died: they find out who is gone, which takes 3 s."""


def trainer_names(count: int) -> list[str]:
    """The names of their processes, the first rank's first: trainer, trainer-1, …"""
    return ["trainer", *(f"trainer-{rank}" for rank in range(1, count))]


def rank_environment(name: str, count: int, port: int) -> dict[str, str]:
    """torchrun's variables for one of ``count`` trainers, which meet at a port of the loopback interface."""
    rank = name.partition("-")[2] or "0"
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_loopback_port() -> int:
    """A port that nobody listens at. If somebody takes it before the first rank does, all start again with another."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cause_of(exit_codes: Mapping[str, int]) -> str:
    """Whose end ended the others': a user's mistake comes first, then a signal, then an error; the first, if all are 0.

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
