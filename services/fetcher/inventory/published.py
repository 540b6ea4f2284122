"""Published inventory of a run with several shards: lists of files that the first shard makes and all of them read.

A list is one file in a folder that all shards share. It gets its name by a hard link once it is complete, so that the
first one to be published stays, whoever makes another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from common.atomic_file import OWNER_ONLY, part_of_one_writer, sync_folder
from common.errors import BadInputError
from common.files.inputs import NothingFound
from common.plan import SourceFile
from common.plan_hash import files_digest
from services.fetcher.inventory.ranges import InputRange, range_key

_VERSION = 1


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
        """File of the list of a range; its name shows no input, which may have a secret in it."""
        name = hashlib.blake2b(range_key(one).encode(), digest_size=8).hexdigest()
        return self._folder / f"files-{name}.jsonl"

    def is_there(self, one: InputRange) -> bool:
        """True if expand() need not wait for another shard."""
        return self._lists or self.path(one).exists()

    def expand(self, one: InputRange) -> list[SourceFile]:
        """Files of a range, as published. Raises NothingFound if it has none, and what listing raises."""
        if not self.path(one).exists():
            try:
                self._publish(one, self._expand(one), "")
            except NothingFound as error:
                if not (self._skips and one.name):
                    raise
                self._publish(one, [], str(error))
        return read_published(self.path(one))

    def _publish(self, one: InputRange, files: list[SourceFile], note: str) -> None:
        part = part_of_one_writer(self.path(one))
        digest = files_digest((file.url, file.size_bytes) for file in files)
        head = {"version": _VERSION, "range": one.name, "num_files": len(files), "digest": digest, "note": note}
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY)
        try:
            with os.fdopen(descriptor, "w") as sink:
                sink.write(json.dumps(head) + "\n")
                sink.writelines(json.dumps([file.url, file.size_bytes, file.checksum]) + "\n" for file in files)
                sink.flush()
                os.fsync(sink.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(part, self.path(one))
        finally:
            part.unlink(missing_ok=True)
        sync_folder(self._folder)


def read_published(path: Path) -> list[SourceFile]:
    """Files of a published list. Raises NothingFound if it has none, and BadInputError if it is damaged."""
    head, files = _content(path)
    if head.get("version") != _VERSION:
        raise BadInputError(f"{path}: written by another version of icestream; use --fresh, or another run directory")
    if len(files) != head["num_files"] or files_digest((file.url, file.size_bytes) for file in files) != head["digest"]:
        raise BadInputError(f"{path}: damaged list of files (its digest is another one); start over with --fresh")
    if not files:
        raise NothingFound(head["note"])
    return files


def num_published(paths: Iterable[Path]) -> int:
    """Number of files in published lists."""
    total = 0
    for path in paths:
        with path.open() as lines:
            total += int(json.loads(next(lines))["num_files"])
    return total


def _content(path: Path) -> tuple[dict[str, object], list[SourceFile]]:
    try:
        with path.open() as lines:
            head = json.loads(next(lines))
            return head, [SourceFile(*json.loads(line)) for line in lines]
    except (ValueError, TypeError, StopIteration) as error:
        raise BadInputError(f"{path}: damaged list of files ({error}); start over with --fresh") from None
