"""What a run is called in a merged folder, and what `--since` means. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from common.errors import BadInputError

TENSORBOARD_FOLDER = "tensorboard"
_NOT_SAFE = re.compile(r"[^\w.+=@,-]+")
_AGE = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def sanitised(name: str) -> str:
    """One path component that any shell, URL and file system takes: never empty, hidden, `.` or `..`."""
    return _NOT_SAFE.sub("_", name).lstrip(".")[:200] or "_"


def run_and_rest(source: Path, folder: Path) -> tuple[str, tuple[str, ...]]:
    """The run's name, and the path components below it, of a folder with event files in or below ``source``.

    A run is what has a folder `tensorboard`: `runs/a/tensorboard/2026-11-21` is (`a`, (`2026-11-21`,)), whether `runs`,
    `runs/a` or `runs/a/tensorboard` was named. Without one, what was named is the run.
    """
    if source.name == TENSORBOARD_FOLDER:
        source = source.parent
    inner = folder.relative_to(source).parts
    if TENSORBOARD_FOLDER in inner:
        at = inner.index(TENSORBOARD_FOLDER)
        run, rest = inner[:at], inner[at + 1 :]
    else:
        run, rest = (), inner
    return "-".join(run) or source.name, rest


def unique(run: str, rest: tuple[str, ...], parent: str, is_taken: Callable[[str], bool]) -> str:
    """A relative path that is not taken: the run's name, with its parent's if need be, with a number if need be."""
    below = [sanitised(part) for part in rest]
    candidates = [sanitised(run), sanitised(f"{parent}-{run}")]
    number = 2
    while True:
        for candidate in candidates:
            path = "/".join([candidate, *below])
            if not is_taken(path):
                return path
        candidates = [sanitised(f"{parent}-{run}-{number}")]
        number += 1


def since_s(text: str, now_s: float) -> float:
    """Seconds of the epoch of `2026-11-21`, `2026-11-21T08:00` (local time, or with an offset), `12h`, `7d`, `2w`."""
    age = _AGE.fullmatch(text.strip())
    if age:
        return now_s - float(age[1]) * _SECONDS[age[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise BadInputError(
            f"--since {text}: expected a date (2026-11-21, 2026-11-21T08:00) or an age (30m, 12h, 7d, 2w)"
        ) from None
