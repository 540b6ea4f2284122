"""Merge of the event files of many runs below one directory, as links or copies; existing ones stay.

A note in the directory records the folder of each run, so that a second merge uses the same names. Folders that it
doesn't list were not made by a merge and are never touched.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.atomic_file import AS_UMASK_SAYS, replace_file, replacing
from common.errors import BadInputError
from common.tensorboard_names import unique
from icestream.commands.tensorboard.find import EVENT_FILE, EventFile, LogFolder

NOTE_FILE = ".icestream-merge.json"
_PART = ".part"
"""Prefix of incomplete copies, unlike that of event files: TensorBoard must not read them."""


@dataclass
class Merged:
    """Result of a merge, in numbers of files."""

    new: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    """Number of removed links to missing files."""


def merge(
    folders: Sequence[LogFolder],
    out: Path,
    *,
    how: Literal["link", "copy"],
    on_file: Callable[[], None] = lambda: None,
) -> Merged:
    """Link or copy the files of ``folders`` below ``out``. Raises BadInputError."""
    out.mkdir(parents=True, exist_ok=True)
    names = _read_note(out)
    for folder in folders:
        if str(folder.path) not in names:
            names[str(folder.path)] = unique(folder.run, folder.rest, folder.parent, _taken(out, names))
    _write_note(out, names)  # first: after a kill, the next merge uses the same names
    merged = Merged()
    for name in names.values():
        merged.removed += _remove_dangling(_inside(out, name))
    for folder in folders:
        target = _inside(out, names[str(folder.path)])
        target.mkdir(parents=True, exist_ok=True)
        for file in folder.files:
            place = _link if how == "link" else _copy
            match place(folder.path / file.name, file, target / file.name):
                case "new":
                    merged.new += 1
                case "changed":
                    merged.changed += 1
                case "unchanged":
                    merged.unchanged += 1
            on_file()
    return merged


def _taken(out: Path, names: dict[str, str]) -> Callable[[str], bool]:
    """Predicate for taken names: used by another folder, or by files not made by a merge."""
    given = set(names.values())
    own = {part for name in given for part in _above(name)}

    def is_taken(name: str) -> bool:
        if name in given:
            return True
        foreign = [part for part in (*_above(name), name) if part not in own and os.path.lexists(out / part)]
        return bool(foreign)

    return is_taken


def _above(name: str) -> list[str]:
    """Parents of a name, without itself: `a/b/c` -> `a`, `a/b`."""
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _inside(out: Path, name: str) -> Path:
    """Folder below ``out``. Raises BadInputError if the path to it contains a link."""
    path = out
    for part in name.split("/"):
        path = path / part
        if path.is_symlink():
            raise BadInputError(f"{path} is a link: nothing is written through it; remove it, or use another -o")
    return path


def _link(source: Path, file: EventFile, target: Path) -> Literal["new", "changed", "unchanged"]:
    was_there = os.path.lexists(target)
    if target.is_symlink() and target.readlink() == source:
        return "unchanged"
    part = target.with_name(f"{_PART}-{file.name}")
    part.unlink(missing_ok=True)
    part.symlink_to(source)
    part.replace(target)
    return "changed" if was_there else "new"


def _copy(source: Path, file: EventFile, target: Path) -> Literal["new", "changed", "unchanged"]:
    was_there = os.path.lexists(target)
    if was_there and not target.is_symlink():
        there = target.stat()
        if (there.st_size, there.st_mtime_ns) == (file.size_bytes, file.mtime_ns):
            return "unchanged"
    part = target.with_name(f"{_PART}-{file.name}")
    with replacing(target, durable=False, mode=AS_UMASK_SAYS, part=part) as new:
        shutil.copyfile(source, new)
        os.utime(new, ns=(file.mtime_ns, file.mtime_ns))  # the time before the copy, so that later writes are noticed
    return "changed" if was_there else "new"


def _remove_dangling(folder: Path) -> int:
    removed = 0
    for path in folder.glob(f"{EVENT_FILE}*"):
        if path.is_symlink() and not path.exists():
            path.unlink()
            removed += 1
    return removed


def _read_note(out: Path) -> dict[str, str]:
    path = out / NOTE_FILE
    try:
        names = json.loads(path.read_text())["folders"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        names = None
    if not isinstance(names, dict) or not all(_is_safe(name) for name in names.values()):
        raise BadInputError(f"{path}: not a note of `icestream tensorboard merge`; remove {out}, or use another -o")
    return names


def _is_safe(name: object) -> bool:
    return isinstance(name, str) and all(part and not part.startswith(".") for part in name.split("/"))


def _write_note(out: Path, names: dict[str, str]) -> None:
    note = json.dumps({"folders": names}, indent=1) + "\n"
    replace_file(out / NOTE_FILE, note, durable=False, mode=AS_UMASK_SAYS, part=out / f"{NOTE_FILE}{_PART}")
