"""Variables that torchrun gives to a process."""

from __future__ import annotations

from common.process import LAUNCH_VARIABLE


def of_torchrun(node: int = 0, nodes: int = 1, *, trainers: int = 1, local_rank: int = 0) -> dict[str, str]:
    """Return them for a process of one of several nodes."""
    numbers = {"GROUP_RANK": node, "GROUP_WORLD_SIZE": nodes, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": trainers}
    texts = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", LAUNCH_VARIABLE: "of-the-test"}
    return {name: str(number) for name, number in numbers.items()} | texts
