"""Notes of the nodes as files of the shared folder, `nodes/NODE`."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from services.supervisor.nodes.note import NodeNote

NODES_FOLDER = "nodes"
_NOTE_BYTES = 16384
"""Length of the file: a note replaces the former one in place, in one piece, so that NFS never shows an old file."""
_TEXT_LENGTH = 1000


def write_note(shared: Path, note: NodeNote) -> None:
    """Replace the note of a node. Raises OSError."""
    path = _path_of(shared, note.node)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    short = note.model_copy(update={"text": note.text[:_TEXT_LENGTH]})
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(descriptor, short.model_dump_json().encode().ljust(_NOTE_BYTES), 0)
        os.fsync(descriptor)  # other hosts must see it
    finally:
        os.close(descriptor)


def read_note(shared: Path, node: int) -> NodeNote | None:
    """Newest note of a node; None if there is none, or the machine can't read it now."""
    try:
        return NodeNote.model_validate_json(_path_of(shared, node).read_bytes())  # opened again: NFS asks the server
    except (OSError, ValidationError):
        return None


def _path_of(shared: Path, node: int) -> Path:
    return shared / NODES_FOLDER / str(node)
