"""Names of runs in a merged folder, and parser of `--since`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from common.errors import BadInputError

TENSORBOARD_FOLDER = "tensorboard"
_NOT_SAFE = re.compile(r"[^\w.+=@,-]+")
_AGE = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
_TIMESTAMP = re.compile(r"^(\d{8})-(\d{6})$")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def sanitised(name: str) -> str:
    """Path component valid in any shell, URL and file system: never empty, hidden, `.` or `..`."""
    return _NOT_SAFE.sub("_", name).lstrip(".")[:200] or "_"


def run_and_rest(source: Path, folder: Path) -> tuple[str, tuple[str, ...]]:
    """Name of the run, and the path components below it, of a folder with event files in or below ``source``.

    A run is a folder with a folder `tensorboard`: `runs/a/tensorboard/2026-11-21` is (`a`, (`2026-11-21`,)), for each
    of the sources `runs`, `runs/a` and `runs/a/tensorboard`. Without such a folder each folder with event files is a
    run, as in a log directory `logs/<run>/`.
    """
    if source.name == TENSORBOARD_FOLDER:
        source = source.parent
    inner = folder.relative_to(source).parts
    if TENSORBOARD_FOLDER in inner:
        at = inner.index(TENSORBOARD_FOLDER)
        run, rest = inner[:at], inner[at + 1 :]
    else:
        run, rest = inner, ()
    return "-".join(run) or source.name, rest


def unique(run: str, rest: tuple[str, ...], parent: str, is_taken: Callable[[str], bool]) -> str:
    """Unused relative path: the run's name, with its parent's and a number if necessary."""
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
    """Seconds since 1970 of a date or an age: `2026-11-21`, `2026-11-21T08:00`, `20261121-080000`, `12h`, `7d`, `2w`.

    Dates are in local time, unless they have an offset.
    """
    age = _AGE.fullmatch(text.strip())
    if age:
        return now_s - float(age[1]) * _SECONDS[age[2]]
    try:
        return datetime.fromisoformat(_TIMESTAMP.sub(r"\1T\2", text.strip())).timestamp()
    except (ValueError, OverflowError):
        raise BadInputError(
            f"--since {text}: expected a date (2026-11-21, 2026-11-21T08:00) or an age (30m, 12h, 7d, 2w)"
        ) from None
