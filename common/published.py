"""Published lists of files: the inventory of a run with several shards, which the first one makes and all of them read.

A list is one file in a folder that all shards share. It gets its name once it is complete, by a hard link, or on a file
system without them by a rename under a lock: so that the first one to be published stays, whoever makes another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.atomic_file import NO_LINKS, OWNER_ONLY, part_of_one_writer, sync_folder
from common.errors import BadInputError, TransientError
from common.file_lock import locked, patience
from common.files.inputs import NothingFound
from common.plan import SourceFile
from common.plan_hash import files_digest

_VERSION = 1
_PREFIX = "files-"
_LOCK_S = 60.0
"""Time for another process to publish a list that it has written already."""


def published_path(folder: Path, name: str) -> Path:
    """File of the list called ``name``."""
    return folder / f"{_PREFIX}{name}.jsonl"


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
    """Files of a published list. Raises NothingFound if it has none, and BadInputError if it is damaged."""
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
    """Number of files in a list; 0 if it isn't published."""
    if not path.exists():
        return 0
    with path.open() as lines:
        return int(_head(next(lines))["num_files"])


def _head(line: str) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(line)
    if head["version"] != _VERSION:
        raise ValueError("another version of icestream wrote it")
    return head
