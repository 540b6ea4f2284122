"""Comparison of the inventories from which the shards of a run were planned. Pure."""

from __future__ import annotations

from common.errors import BadInputError
from common.messages import DeliveredUnit


class OneInventory:
    """Inventory of several shards, which all of them must have."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bool], tuple[int, str]] = {}

    def require(self, shard: int, unit: DeliveredUnit) -> None:
        """Raise BadInputError if the unit of ``shard`` was planned from another list of files than a former one."""
        key = (unit.source.ranges, unit.epoch > 0)  # from the second epoch on, the digest is that of complete ranges
        former, digest = self._known.setdefault(key, (shard, unit.source.digest))
        if digest != unit.source.digest:
            raise BadInputError(
                f"shards {former} and {shard} were planned from different lists of files: stop all processes, and start"
                " over with --fresh"
            )
