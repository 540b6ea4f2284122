"""Events that each shard delivered of each epoch: an endless run without any event to train has to end."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from common.atomic_file import Publishing
from services.fetcher.inventory.own_record import OwnRecord


class SharedEpochs:
    """Numbers of events in ``folder``, which all ``shards`` shards share; each writes its own and reads all."""

    def __init__(self, folder: Path, shard: int, shards: int, publishing: Publishing = nullcontext) -> None:
        self._folder = folder
        self._own = OwnRecord(self._path(shard), publishing)
        self._shards = shards
        self._newest = -1

    def is_barren(self, complete: dict[int, int]) -> bool:
        """Note the events of complete epochs of this shard; True if one of them has none in any shard."""
        new = {epoch: events for epoch, events in complete.items() if epoch > self._newest}
        if not new:
            return False
        self._newest = max(new)
        self._own.append(*(f"{epoch} {events}" for epoch, events in new.items()))
        if all(new.values()):
            return False
        of_shards = [_read(self._path(shard)) for shard in range(self._shards)]
        return any(all(of_shard.get(epoch) == 0 for of_shard in of_shards) for epoch in new)

    def _path(self, shard: int) -> Path:
        return self._folder / f"epochs-{shard:03d}"


def _read(path: Path) -> dict[int, int]:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    words = [line.split() for line in lines]
    return {int(both[0]): int(both[1]) for both in words if len(both) == 2 and all(map(str.isdecimal, both))}
