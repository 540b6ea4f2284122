"""Check of the place of an output, before minutes of work."""

from __future__ import annotations

import tempfile
from pathlib import Path

from common.errors import BadInputError


def require_place(out: Path, remedy: str = "choose another place") -> None:
    """Raise BadInputError if no file or folder can be made at ``out``, with the folders above it. Leaves nothing there.

    A file is made nearby for a moment: permissions alone don't tell, for example, of a disk that is read-only.
    """
    place = out.absolute()
    try:
        there = next(path for path in (place, *place.parents) if _is_there(path))
        folder = there if there.is_dir() else there.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except NotADirectoryError:
        file = next(path for path in place.parents if path.exists())
        raise BadInputError(f"{out}: {file} is no folder; {remedy}") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInputError(f"{out}: nothing can be written there ({reason}); {remedy}") from None


def _is_there(path: Path) -> bool:
    """True for an existing path, False for a missing one; OSError for one that can't be."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True
