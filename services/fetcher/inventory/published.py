"""Published inventory of a run with several shards: the first shard lists the files of a range, the others wait."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from common.files.inputs import NothingFound
from common.plan import SourceFile
from common.published import publish, published_path, read_published
from services.fetcher.inventory.ranges import InputRange, range_key


def list_path(folder: Path, one: InputRange) -> Path:
    """File of the list of a range; its name shows no input, which may have a secret in it."""
    return published_path(folder, hashlib.blake2b(range_key(one).encode(), digest_size=8).hexdigest())


class PublishedInventory:
    """Lists of files in ``folder``, one for each range. ``lists``: true for the shard that makes them."""

    def __init__(
        self, folder: Path, expand: Callable[[InputRange], list[SourceFile]], *, lists: bool, skips: bool
    ) -> None:
        """``expand`` makes the list of a range. ``skips``: a range without files is published as such."""
        self._folder = folder
        self._expand = expand
        self._lists = lists
        self._skips = skips

    def path(self, one: InputRange) -> Path:
        """File of the list of a range."""
        return list_path(self._folder, one)

    def is_there(self, one: InputRange) -> bool:
        """True if expand() need not wait for another shard."""
        return self._lists or self.path(one).exists()

    def expand(self, one: InputRange) -> list[SourceFile]:
        """Files of a range, as published. Raises NothingFound if it has none, and what listing raises."""
        if not self.path(one).exists():
            try:
                publish(self.path(one), self._expand(one))
            except NothingFound as error:
                if not (self._skips and one.name):
                    raise
                publish(self.path(one), [], str(error))
        return read_published(self.path(one))
