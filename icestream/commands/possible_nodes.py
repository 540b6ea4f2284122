"""Numbers of nodes on which a run can go on: the rule that every start, and every engine, goes by. Pure."""

from __future__ import annotations

from common.config import StreamConfig
from common.errors import BadInputError
from services.trainer.stream.shares import shares_of_rank


def possible_nodes(stream: StreamConfig, trainers: int) -> tuple[int, ...]:
    """Numbers of nodes, with so many trainers each, that can share the run's shards, in order."""
    return tuple(nodes for nodes in range(1, stream.shards + 1) if not _obstacle(stream, nodes, trainers))


def require_shares(stream: StreamConfig, nodes: int, trainers: int) -> None:
    """Raise BadInputError if the nodes, with so many trainers each, can't share the shards evenly."""
    if obstacle := _obstacle(stream, nodes, trainers):
        if stream.shards > 1:
            possible = ", ".join(map(str, possible_nodes(stream, trainers))) or "none"
            obstacle += f"; possible numbers of nodes with --trainers {trainers}: {possible}"
        raise BadInputError(obstacle)


def _obstacle(stream: StreamConfig, nodes: int, trainers: int) -> str:
    """Reason that the nodes can't share the shards; empty if they can."""
    needed = nodes * trainers
    if stream.shards == 1 < nodes:
        return (
            f"--nodes {nodes}, but stream.shards = 1, and each node runs shards of its own; for a new run: --set"
            f" stream.shards={nodes}, or a multiple of it"
        )
    if stream.shards % nodes:
        return f"--nodes {nodes}: stream.shards = {stream.shards} must be a multiple of it"
    try:
        shares_of_rank(stream, 0, needed)
    except BadInputError as error:
        return str(error)
    return ""
