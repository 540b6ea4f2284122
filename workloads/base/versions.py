"""Versions of the programs that made a file."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence


def versions(packages: Sequence[str], *, optional: Sequence[str] = ()) -> dict[str, str]:
    """Versions of Python and of ``packages``, ``unknown`` if run from sources; optional ones only if installed."""
    found = {"python": platform.python_version()}
    for package in (*packages, *optional):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            if package not in optional:
                found[package] = "unknown"
    return found
