"""Folder that the fetchers of all shards share: lists of files, bad files, and records of what each has planned.

Each shard writes files of its own and reads those of all. Only the lists of files are of all shards: the first one
makes them. A list gets its name once it is complete, by a hard link, or on a file system without them by a rename under
a lock: so that the first one to be published stays, whoever makes another one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.atomic_file import NO_LINKS, OWNER_ONLY, Publishing, part_of_one_writer, replacing, sync_folder
from common.errors import BadInputError, TransientError
from common.files.inputs import NothingFound
from common.locks import locked, patience
from common.plan import SourceFile, StagedFile, files_digest, footer_of, groups_of
from common.summary import planned_name
from services.config.settings import InputRange, range_key

_VERSION = 1
"""Version of the form of a list."""
_LOCK_S = 60.0
"""Time for another process to publish a list that it has written already."""


@dataclass(frozen=True)
class SharedFolder:
    """The folder, as one shard uses it; without ``folder``, the run has no shards."""

    folder: Path | None = None
    shard: int = 0
    shards: int = 1
    publishing: Publishing = nullcontext
    """Context of each addition: of several nodes, one of an older attempt adds nothing (common/locks.py)."""

    def path(self, name: str) -> Path:
        """Return the path of a file in the folder."""
        assert self.folder is not None
        return self.folder / name

    def append(self, name: str, *lines: str) -> None:
        """Add lines to a file of this shard, on disk on return: each on a new one whatever a killed process left."""
        with self.publishing(), self.path(name).open("a") as sink:
            sink.writelines(f"\n{line}\n" for line in lines)
            sink.flush()
            os.fsync(sink.fileno())

    def append_planned(self, *lines: str) -> None:
        """Add lines to the record of the shard's planned blocks; nothing without shards."""
        if self.folder is not None:
            self.append(planned_name(self.shard), *lines)

    def replace(self, name: str, *lines: str) -> None:
        """Replace all lines of a file of this shard, on disk on return."""
        path = self.path(name)
        with replacing(path, durable=True, part=part_of_one_writer(path), publishing=self.publishing) as new:
            new.write_text("".join(f"{line}\n" for line in lines))


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


# -------------------------------------------------------------- lists of files


def list_path(folder: Path, inputs: InputRange) -> Path:
    """Return the file of the list of a range; its name shows no input, which may have a secret in it."""
    return folder / f"files-{hashlib.blake2b(range_key(inputs).encode(), digest_size=8).hexdigest()}.jsonl"


def publish(path: Path, files: Sequence[SourceFile], note: str = "") -> None:
    """Publish a list, unless there is one already. ``note``: reason that it is empty."""
    part = part_of_one_writer(path)
    digest = files_digest((file.url, file.size_bytes) for file in files)
    head = {"version": _VERSION, "num_files": len(files), "digest": digest, "note": note}
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "w") as sink:
            sink.write(json.dumps(head) + "\n")
            sink.writelines(json.dumps([file.url, file.size_bytes, file.checksum]) + "\n" for file in files)
            sink.flush()
            os.fsync(sink.fileno())
        _name_once(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def _name_once(part: Path, path: Path) -> None:
    """Give a complete file its name, unless another one has it."""
    try:
        os.link(part, path)
        return
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
    with locked(path.with_name(f".{path.name}.lock"), patience(_LOCK_S)) as is_held:
        if not is_held:
            raise TransientError(f"{path.parent}: another process is publishing a list of files for {_LOCK_S:g} s")
        if not path.exists():
            part.replace(path)


def read_published(path: Path) -> list[SourceFile]:
    """Return the files of a published list. Raises NothingFound if it has none, and BadInputError if it is damaged."""
    try:
        with path.open() as lines:
            head = _head(next(lines))
            files = [SourceFile(*json.loads(line)) for line in lines]
    except (ValueError, TypeError, KeyError, StopIteration) as error:
        raise BadInputError(f"{path}: damaged list of files ({error}); start over with --fresh") from None
    digest = files_digest((file.url, file.size_bytes) for file in files)
    if (len(files), digest) != (head["num_files"], head["digest"]):
        raise BadInputError(f"{path}: damaged list of files (its digest is another one); start over with --fresh")
    if not files:
        raise NothingFound(head["note"])
    return files


def num_files(path: Path) -> int:
    """Return the number of files in a list; 0 if it isn't published."""
    if not path.exists():
        return 0
    with path.open() as lines:
        return int(_head(next(lines))["num_files"])


def _head(line: str) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(line)
    if head["version"] != _VERSION:
        raise ValueError("another version of icestream wrote it")
    return head


class PublishedInventory:
    """Lists of files, one for each range: the first shard makes them, the others wait for them."""

    def __init__(self, shared: SharedFolder, expand: Callable[[InputRange], list[SourceFile]]) -> None:
        """``expand`` makes the list of a range; one without files is published as such."""
        self._folder = shared.path("")
        self._expand = expand
        self._lists = shared.shard == 0

    def is_there(self, inputs: InputRange) -> bool:
        """Return True if expand() need not wait for another shard."""
        return self._lists or list_path(self._folder, inputs).exists()

    def expand(self, inputs: InputRange) -> list[SourceFile]:
        """Return the files of a range, as published. Raises NothingFound if it has none, and what listing raises."""
        path = list_path(self._folder, inputs)
        if not path.exists():
            try:
                publish(path, self._expand(inputs))
            except NothingFound as error:
                if not inputs.name:
                    raise
                publish(path, [], str(error))
        return read_published(path)


# -------------------------------------------------------------- bad files and epochs of all shards


def add_bad_file(shared: SharedFolder, file: int) -> int:
    """Add a bad file of this shard, and return the number of distinct ones of all shards, for the failure budget.

    A shard adds its own before it counts: of two that do so at the same time, one counts both.
    """
    name = f"bad-{shared.shard:03d}"
    if str(file) not in _lines(shared.path(name)):
        shared.append(name, str(file))
    paths = shared.path("").glob("bad-[0-9][0-9][0-9]")
    return len({int(line) for path in paths for line in _lines(path) if line.isdecimal()})


class SharedEpochs:
    """Events that each shard delivered of each epoch: an endless run without any event to train has to end."""

    def __init__(self, shared: SharedFolder) -> None:
        self._shared = shared
        self._newest = -1

    def is_barren(self, complete: dict[int, int]) -> bool:
        """Note the events of complete epochs of this shard; return True if one of them has none in any shard."""
        new = {epoch: events for epoch, events in complete.items() if epoch > self._newest}
        if not new:
            return False
        self._newest = max(new)
        lines = [f"{epoch} {events}" for epoch, events in new.items()]
        self._shared.append(f"epochs-{self._shared.shard:03d}", *lines)
        if all(new.values()):
            return False
        of_shards = []
        for shard in range(self._shared.shards):
            words = [line.split() for line in _lines(self._shared.path(f"epochs-{shard:03d}"))]
            pairs = (two for two in words if len(two) == 2 and all(map(str.isdecimal, two)))
            of_shards.append({int(epoch): int(events) for epoch, events in pairs})
        return any(all(of_shard.get(epoch) == 0 for of_shard in of_shards) for epoch in new)


# -------------------------------------------------------------- begun blocks


class BegunBlocks:
    """Files of a shard's begun blocks, as they were planned: a fetcher that lost its ledger plans these blocks alike.

    A cursor inside a block means something only as long as the block has the same units. They depend on the footers of
    its files, and on those that are bad; but a file that was good may be gone when another fetcher stages it again.
    ``settings``: plan hash; a record of another plan is dropped.
    """

    def __init__(self, shared: SharedFolder, settings: str) -> None:
        self._shared = shared
        self._name = f"begun-{shared.shard:03d}.jsonl"
        self._head = json.dumps(settings)
        self._lines: dict[int, str] = {}
        lines = _lines(shared.path(self._name))
        if lines[:1] == [self._head]:
            self._lines = {block: line for line in lines[1:] if (block := _block_of(line)) is not None}
        else:
            self._write()

    @property
    def blocks(self) -> list[int]:
        """Numbers of the begun blocks, in order."""
        return sorted(self._lines)

    def files(self, block: int) -> dict[tuple[str, int], StagedFile]:
        """Return the files of a begun block as they were planned, without paths, by URL and size."""
        _, files = json.loads(self._lines[block])
        as_planned: dict[tuple[str, int], StagedFile] = {}
        for url, size_bytes, file, groups, reason, rows in files:
            footer = None if groups is None else footer_of(groups)
            as_planned[url, size_bytes] = StagedFile(file, "", footer, reason=reason, bad_rows=rows)
        return as_planned

    def add(self, block: int, files: Iterable[tuple[SourceFile, StagedFile]]) -> None:
        """Keep the files of a planned block, in place of those of its former plan."""
        kept = [
            (
                source.url,
                source.size_bytes,
                file.file,
                None if file.footer is None else groups_of(file.footer),
                file.reason,
                file.bad_rows,
            )
            for source, file in files
        ]
        self._lines[block] = json.dumps([block, kept])
        self._shared.append(self._name, self._lines[block])

    def forget(self, before_block: int) -> None:
        """Remove blocks to which no checkpoint leads back."""
        left = {block: line for block, line in self._lines.items() if block >= before_block}
        if len(left) < len(self._lines):
            self._lines = left
            self._write()

    def _write(self) -> None:
        self._shared.replace(self._name, self._head, *self._lines.values())


def _block_of(line: str) -> int | None:
    """Return the block of a line; None for what a killed process left of one."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content[0] if isinstance(content, list) else None
