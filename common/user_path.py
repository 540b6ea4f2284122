"""Parser of paths given by users."""

from __future__ import annotations

import os
from pathlib import Path

from common.errors import BadInputError


def check_path(text: str) -> None:
    """Raise BadInputError for a text that can't be a path."""
    if "\0" in text:
        raise BadInputError(f"{text!r}: no path has a zero byte in it")


def user_path(text: str | os.PathLike[str]) -> Path:
    """Path with a leading ``~`` or ``~user`` resolved. Raises BadInputError."""
    check_path(os.fspath(text))
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise BadInputError(f"{text}: no home of that user is known; write the path in full") from None
