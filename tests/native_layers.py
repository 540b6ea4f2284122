"""Libraries in C++, built once for all tests of a process."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

import pytest

from common import native
from common.files.rows import FILES
from common.native import NativeLibrary
from workloads.base.native.layers import LAYERS

_FOLDER = tempfile.TemporaryDirectory(prefix="icestream-native-")


@cache
def compiled(library: NativeLibrary = LAYERS) -> ctypes.CDLL:
    """The library; skips the test where there is no compiler."""
    environment = {"PATH": os.environ.get("PATH", ""), "XDG_CACHE_HOME": _FOLDER.name}
    if not any(Path(folder, "g++").exists() for folder in environment["PATH"].split(":")):
        pytest.skip("no g++")
    return native.built(library.sources, environment)


@contextmanager
def in_cpp(library: NativeLibrary) -> Iterator[None]:
    """Context in which that library is in use."""
    before, library.used = library.used, compiled(library)
    try:
        yield
    finally:
        library.used = before


def layers_in_cpp() -> AbstractContextManager[None]:
    """Context in which the layers are computed in C++."""
    return in_cpp(LAYERS)


def files_in_cpp() -> AbstractContextManager[None]:
    """Context in which files are decoded in C++."""
    return in_cpp(FILES)


@pytest.fixture(autouse=True, params=["Python", pytest.param("C++", marks=pytest.mark.process)])
def both_ways(request: pytest.FixtureRequest, compiler_for_process_tests_only: None) -> Iterator[None]:
    """Each test of a module that imports this fixture runs without the library for files and with it."""
    if request.param == "Python":
        yield
    else:
        with files_in_cpp():
            yield
