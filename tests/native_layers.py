"""The layers in C++, built once for all tests of a process."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from workloads.base.native import library

_FOLDER = tempfile.TemporaryDirectory(prefix="icestream-native-")


@cache
def compiled() -> ctypes.CDLL:
    """The library; skips the test where there is no compiler."""
    environment = {"PATH": os.environ.get("PATH", ""), "XDG_CACHE_HOME": _FOLDER.name}
    if not any(Path(folder, "g++").exists() for folder in environment["PATH"].split(":")):
        pytest.skip("no g++")
    return library.built(environment)


@contextmanager
def layers_in_cpp() -> Iterator[None]:
    """Context in which the layers are computed in C++."""
    before, library._used = library._used, compiled()
    try:
        yield
    finally:
        library._used = before
