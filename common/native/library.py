"""Library in C++ of this process: its sources, and whether it is in use.

Nothing is built before `use` is called. Where that fails Python computes the same, and a line in the log says why.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NativeSources:
    """NativeSources of a library, and its functions."""

    name: str
    files: tuple[Path, ...]
    headers: tuple[Path, ...]
    functions: Mapping[str, str]
    """Function -> its arguments and, behind "->", its result: p pointer, l whole number, f float32."""


@dataclass(eq=False)
class NativeLibrary:
    """Library of this process, in use or not."""

    sources: NativeSources
    without: str
    """Log's text for a machine that can't build it; the reason follows."""
    used: ctypes.CDLL | None = None
    """The library; None: Python computes."""
    found: ctypes.CDLL | str | None = field(default=None, repr=False)
    """Outcome of this process's only try to build: the library, or why there is none; None before it."""

    def use(self) -> bool:
        """Compute in C++ from now on; True if that is possible. Builds the library on first use: 1 to 3 s."""
        if self.found is None:
            from common.native import build  # a compiler is a process: pure modules name the library only

            try:
                self.found = build.built(self.sources)
            except (OSError, RuntimeError) as error:
                self.found = str(error)
                logger.info("%s (%s)", self.without, error)
        self.used = None if isinstance(self.found, str) else self.found
        return self.used is not None
