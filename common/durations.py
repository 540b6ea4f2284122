"""Lengths of time as people read them."""

from __future__ import annotations

import math

_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def duration(seconds: float) -> str:
    """A length of time in its two largest units: ``2 d 3 h``, ``4 min 10 s``, ``7 s``; ``unknown`` if not finite."""
    if not math.isfinite(seconds):
        return "unknown"
    return " ".join(f"{count} {name}" for name, count in _two_largest(seconds))


def compact_duration(seconds: float) -> str:
    """A length of time for a short line: ``2d3h``, ``4m10s``, ``7s``; ``?`` if not finite."""
    if not math.isfinite(seconds):
        return "?"
    return "".join(f"{count}{name[0]}" for name, count in _two_largest(seconds))


def _two_largest(seconds: float) -> list[tuple[str, int]]:
    left = int(seconds)
    parts: list[tuple[str, int]] = []
    for name, size in _UNITS:
        count, left = divmod(left, size)
        if count or (name == "s" and not parts):
            parts.append((name, count))
    return parts[:2]
