"""Lengths of time as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A length of time in its two largest units: ``2 d 3 h``, ``4 min 10 s``, ``7 s``."""
    left = int(seconds)
    parts: list[str] = []
    for name, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (name == "s" and not parts):
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])
