"""Files that an earlier training has processed, by its list: they are left out of a new inventory.

The list is JSON with the names under `processed_files`: `training_checkpoint.json` of the training before icestream.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import BadInputError
from common.files.inputs import expand
from common.files.remotes import Remotes
from common.plan import SourceFile
from common.redact import shown, without_tokens
from services.fetcher.inventory.ranges import InputRange

logger = logging.getLogger(__name__)

_NAMES_KEY = "processed_files"
_NAMES_SHOWN = 5


@dataclass(frozen=True)
class ListedRange:
    """Files of a range."""

    files: list[SourceFile]
    """Files without those of the list."""
    left_out: int = 0
    unknown: tuple[str, ...] = ()
    """Names on the list that are no file of this range. With ranges: only those in a folder of the range's name."""

    def line(self, done: Path) -> str:
        """Numbers of files left out, and names that match no file, as one line."""
        text = f"{self.left_out:,} files left out, which {shown(str(done))} names"
        if not self.unknown:
            return text
        names = ", ".join(shown(name, 200) for name in self.unknown[:_NAMES_SHOWN])
        more = ", …" if len(self.unknown) > _NAMES_SHOWN else ""
        return f"{text}; {len(self.unknown):,} of its names match no file: {names}{more}"


def list_range(one: InputRange, remotes: Remotes) -> list[SourceFile]:
    """Files of a range for the inventory; what its list of done files leaves out is logged. Raises as listed()."""
    found = listed(one, remotes)
    if one.done is not None:
        log = logger.warning if found.unknown else logger.info
        log("%s%s", f"range {one.name}: " if one.name else "", found.line(one.done))
    return found.files


def listed(one: InputRange, remotes: Remotes) -> ListedRange:
    """Files of a range without those that its list names.

    Raises BadInputError for a bad list, and if it leaves nothing of inputs without ranges; else as expand().
    """
    names = read_done(one.done) if one.done is not None else frozenset()
    files = expand(one.inputs, remotes)
    if not names:
        return ListedRange(files)
    found = without_done(files, names, one.name)
    if not found.files and not one.name:
        raise BadInputError(
            f"all {len(files)} files of the inputs are in {shown(str(one.done))}: nothing is left to train on"
        )
    return found


def without_done(files: Sequence[SourceFile], names: frozenset[str], range_name: str = "") -> ListedRange:
    """Files whose names are not on the list."""
    by_name = {_normal(file.url): file for file in files}
    kept = [file for name, file in by_name.items() if name not in names]
    unknown = (name for name in names - by_name.keys() if not range_name or f"/{range_name}/" in name)
    return ListedRange(kept, len(by_name) - len(kept), tuple(sorted(unknown)))


def read_done(path: Path) -> frozenset[str]:
    """Names on a list; relative ones are below its folder. Raises BadInputError."""
    expected = f'expected {{"{_NAMES_KEY}": [names]}}'
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise BadInputError(f"--done {shown(str(path))}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise BadInputError(f"--done {shown(str(path))}: not JSON; {expected}") from None
    names = content.get(_NAMES_KEY) if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInputError(f"--done {shown(str(path))}: {expected}")
    folder = path.absolute().parent
    return frozenset(_normal(name if "://" in name else str(folder / name)) for name in names)


def _normal(name: str) -> str:
    """Name in the form in which two names of one file are equal: URLs without tokens and double slashes."""
    scheme, separator, rest = name.partition("://")
    if not separator:
        return os.path.normpath(name)
    return f"{scheme}://{re.sub('/{2,}', '/', without_tokens(rest))}"
