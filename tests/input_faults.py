"""Errors of the machine, put in place of every touch of an input file: open, fstat, stat, read, preadv,
Arrow's and HDF5's.

`Faults.fail(touch, nth, number)` has the nth touch of a kind, and all later ones, fail with an errno.
"""

from __future__ import annotations

import errno
import io
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import pyarrow as pa
import pytest

from common import own_memory
from common.files.parquet.arrow_file import ArrowFile

ERRNOS = tuple(sorted(errno.errorcode))
FEW = (errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ESTALE, errno.EACCES, errno.ENOENT, errno.EINVAL)


class Faults:
    """Counts touches of files below a folder, and has them fail."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.touches: Counter[str] = Counter()
        self._folder = str(folder)
        self._fails: tuple[str, int, int] | None = None
        self._armed = False
        self._files: list[_File] = []
        for name in ("stat", "open", "fstat", "preadv"):
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        real_open = io.open

        def opens(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not self._armed or mode != "rb" or not self._is_input(path):
                return real_open(path, mode, *arguments, **options)
            self.touch("open", path)
            return self._file(path)

        real_fdopen = os.fdopen
        monkeypatch.setattr(io, "open", opens)
        monkeypatch.setattr(os, "fdopen", lambda fd, mode: self._file(fd) if self._armed else real_fdopen(fd, mode))
        real_parquet: Any = ArrowFile.__init__
        real_h5, real_space = h5py.File, h5py.h5s.create_simple

        def parquet(made: ArrowFile, source: Any, *, memory_map: bool = False, **options: Any) -> None:
            if not self._armed:
                return real_parquet(made, source, memory_map=memory_map, **options)
            self.touch("arrow open", source)
            return real_parquet(made, pa.PythonFile(self._file(source, "arrow read"), "r"), **options)

        def hdf5(path: Any, *arguments: Any, **options: Any) -> Any:
            self.touch("hdf5 open", path)
            return real_h5(path, *arguments, **options)

        def space(shape: Any) -> Any:
            try:
                self.touch("hdf5 read", "")
            except OSError as error:  # the kernel's errno stands in the text only
                told = f"file read failed: time = 1, errno = {error.errno}, error message = '{error.strerror}'"
                raise OSError(f"Can't synchronously read data ({told})") from None
            return real_space(shape)

        # A machine without memory has none for the question whose fault that is, either.
        monkeypatch.setattr(own_memory.mmap, "mmap", self._no_memory)
        monkeypatch.setattr(ArrowFile, "__init__", parquet)
        monkeypatch.setattr(h5py, "File", hdf5)
        monkeypatch.setattr(h5py.h5s, "create_simple", space)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Touches are counted anew, and nothing fails."""
        self.touches.clear()
        self._armed = True
        try:
            yield
        finally:
            self._armed = False
            while self._files:
                self._files.pop().close()

    @contextmanager
    def fail(self, touch: str, nth: int, number: int) -> Iterator[None]:
        """The nth touch (from 1) of this kind fails, and each one behind it."""
        self._fails = touch, nth, number
        try:
            with self.counted():
                yield
        finally:
            self._fails = None

    def walk(self, touches: Counter[str]) -> Iterator[tuple[str, int, int]]:
        """Touch, nth and errno: every errno at the first of each kind, a few at the others."""
        for touch, times in sorted(touches.items()):
            for nth in range(1, times + 1):
                for number in ERRNOS if nth == 1 else FEW:
                    yield touch, nth, number

    def touch(self, name: str, path: object) -> None:
        if not self._armed:
            return
        self.touches[name] += 1
        if self._fails is not None:
            touch, nth, number = self._fails
            if touch == name and self.touches[name] >= nth:
                raise (
                    MemoryError("malloc failed")
                    if number == errno.ENOMEM
                    else OSError(number, os.strerror(number), str(path))
                )

    @staticmethod
    def _no_memory(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def _is_input(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self._folder)

    def _wrapped(self, name: str, real: Any) -> Any:
        def wrapped(path: Any, *arguments: Any, **options: Any) -> Any:
            if self._armed and (name in ("fstat", "preadv") or self._is_input(path)):
                self.touch(name, path)
            return real(path, *arguments, **options)

        return wrapped

    def _file(self, source: Any, touch: str = "read") -> _File:
        self._files.append(_File(source, self, touch))
        return self._files[-1]


class _File(io.FileIO):
    """An input, each read of which is a touch."""

    def __init__(self, source: Any, faults: Faults, touch: str) -> None:
        super().__init__(source, "rb")
        self._faults = faults
        self._touch = touch

    def read(self, size: int | None = -1) -> bytes:
        self._faults.touch(self._touch, self.name)
        return super().read(-1 if size is None else size)
