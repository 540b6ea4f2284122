"""Errors of the machine at every touch of an input file (open, fstat, stat, read, Arrow's and HDF5's): they
change no stream and blame no file."""

from __future__ import annotations

import errno
import io
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import damage
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common import memory as own_memory
from common.errors import MachineError
from common.files.by_content import ContentReader, read_footer
from common.files.local import BadFileError
from common.messages import Unit
from common.plan import Footer, SlotCapacity, StagedFile, plan_block
from services.decoder.decode import Decode
from workloads.muons.columns import MUONS

OF_THE_BYTES = (errno.EINVAL,)
OF_THE_FILE = (errno.ENOENT, errno.ELOOP)
OF_THE_MACHINE = (errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ESTALE, errno.EACCES)
ERRNOS = (*OF_THE_BYTES, *OF_THE_FILE, *OF_THE_MACHINE)
"""One of each kind; tests/common/test_errors.py has them all."""
KINDS = ("zstd", "gzip")
CAPACITY = SlotCapacity(MUONS, damage.STREAM)
TOUCHES = {
    "zstd": {"open", "fstat", "read", "arrow open", "arrow read"},
    "gzip": {"open", "fstat", "read", "hdf5 open", "hdf5 read"},
}


class Faults:
    """Counts touches of files below a folder, and has them fail."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.touches: Counter[str] = Counter()
        self._folder = str(folder)
        self._fails: tuple[str, int, int] | None = None
        self._armed = False
        self._files: list[_File] = []
        for name in ("stat", "open", "fstat"):
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
        real_parquet: Any = pq.ParquetFile.__init__
        real_h5, real_space = h5py.File, h5py.h5s.create_simple

        def parquet(made: pq.ParquetFile, source: Any, *, memory_map: bool = False, **options: Any) -> None:
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
        monkeypatch.setattr(pq.ParquetFile, "__init__", parquet)
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

    def touch(self, name: str, path: object) -> None:
        if not self._armed:
            return
        self.touches[name] += 1
        if self._fails is not None:
            touch, nth, number = self._fails
            if touch == name and self.touches[name] >= nth:
                if number == errno.ENOMEM:
                    raise MemoryError("malloc failed")
                raise OSError(number, os.strerror(number), str(path))

    @staticmethod
    def _no_memory(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def _is_input(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self._folder)

    def _wrapped(self, name: str, real: Any) -> Any:
        def wrapped(path: Any, *arguments: Any, **options: Any) -> Any:
            if self._armed and (name == "fstat" or self._is_input(path)):
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


def walk(touches: Counter[str]) -> Iterator[tuple[str, int, int]]:
    """Touch, nth and errno: every errno at the first touch of each kind, two at the last."""
    for touch, times in sorted(touches.items()):
        yield from ((touch, 1, number) for number in ERRNOS)
        yield from ((touch, times, number) for number in (errno.EIO, errno.EINVAL))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path, kind: str) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    damage.write_good(folder / "neighbour", kind)
    damage.write_good(folder / "f.parquet", kind)
    return folder / "f.parquet"


@pytest.fixture
def faults(path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(path.parent, monkeypatch)


def footer_of(path: Path) -> Footer:
    return read_footer(path, MUONS, damage.STREAM, CAPACITY)


def units_of(path: Path, footer: Footer, remote: str = "") -> list[Unit]:
    staged = [StagedFile(0, str(path), footer, remote)]
    return plan_block(0, 0, 0, staged, capacity=CAPACITY, stream=damage.STREAM, seed=1)


def test_no_errno_at_a_footer_blames_the_file_but_those_of_its_bytes(kind: str, path: Path, faults: Faults) -> None:
    with faults.counted():
        expected = footer_of(path)
        touches = Counter(faults.touches)
    assert touches.keys() >= TOUCHES[kind]
    for touch, nth, number in walk(touches):
        told = f"{touch} {nth}: {errno.errorcode[number]}"
        with faults.fail(touch, nth, number), pytest.raises((MachineError, BadFileError)) as caught:
            footer_of(path)
        error = caught.value
        if number in OF_THE_BYTES:
            assert isinstance(error, BadFileError), told
        else:
            assert isinstance(error, MachineError), told
            assert error.number == number, told
            assert str(path) in str(error) or touch == "hdf5 read", told
    assert footer_of(path) == expected


@pytest.mark.parametrize("remote", ["", "pelican://osg/f.parquet"])
def test_no_errno_at_a_unit_changes_its_bytes_or_blames_its_rows_but_what_is_the_files_own(
    kind: str, path: Path, faults: Faults, tmp_path: Path, remote: str
) -> None:
    unit = units_of(path, footer_of(path), remote)[0]

    def decode() -> tuple[bytes, int, list[str]]:
        """The slot's bytes, quarantined events, and reasons; a decoder that has opened nothing yet."""
        reader = ContentReader(MUONS)
        try:
            slot = np.zeros(damage.STREAM.slot_bytes, np.uint8)
            _, tally = Decode(MUONS, damage.STREAM, 1, tmp_path, reader)(unit, slot)
            return slot.tobytes(), tally.quarantined, [bad.reason for bad in tally.bad]
        finally:
            reader.close()

    with faults.counted():
        expected = decode()
        touches = Counter(faults.touches)
    assert expected[1:] == (0, [])
    assert touches.keys() >= TOUCHES[kind]
    del touches["stat"]  # it is asked what may be closed, and which file system it is: see OwnFaults
    for touch, nth, number in walk(touches):
        told = f"{touch} {nth}: {errno.errorcode[number]}"
        own = OF_THE_BYTES if remote else OF_THE_BYTES + OF_THE_FILE
        if touch == "hdf5 read":  # its file is open: nothing is said of a path any more
            own = OF_THE_BYTES
        with faults.fail(touch, nth, number):
            if number not in own:
                with pytest.raises(MachineError, match=re.escape(os.strerror(number))):
                    decode()
            else:
                _, quarantined, reasons = decode()
                assert quarantined > 0, told
                assert all(reason.startswith(remote or str(path)) for reason in reasons), told
    assert decode() == expected


def test_a_decoder_that_met_an_error_decodes_the_same_afterwards(
    kind: str, path: Path, faults: Faults, tmp_path: Path
) -> None:
    """One reader through all errors: none of them may leave something behind in it."""
    units = units_of(path, footer_of(path))
    reader = ContentReader(MUONS)
    decode = Decode(MUONS, damage.STREAM, 1, tmp_path, reader)

    def decoded(unit: Unit) -> bytes:
        slot = np.zeros(damage.STREAM.slot_bytes, np.uint8)
        decode(unit, slot)
        return slot.tobytes()

    with faults.counted():
        expected = [decoded(unit) for unit in units]
        touches = Counter(faults.touches)
        reader.close()
    touch = {"zstd": "arrow read", "gzip": "hdf5 read"}[kind]
    for nth in sorted({1, touches[touch] // 2, touches[touch]} - {0}):
        with faults.fail(touch, nth, errno.EIO), pytest.raises(MachineError):
            [decoded(unit) for unit in units]
        with faults.counted():
            assert [decoded(unit) for unit in units] == expected
            reader.close()


def test_a_file_that_is_truncated_while_it_is_open_loses_its_rows_by_name(
    kind: str, path: Path, tmp_path: Path
) -> None:
    """A mapping would end the process with SIGBUS; HDF5 would read zeros."""
    units = units_of(path, footer_of(path))
    reader = ContentReader(MUONS)
    decode = Decode(MUONS, damage.STREAM, 1, tmp_path, reader)
    slot = np.zeros(damage.STREAM.slot_bytes, np.uint8)
    decode(units[0], slot)
    os.truncate(path, 100)
    tallies = [decode(unit, slot)[1] for unit in units]
    reader.close()
    assert all(tally.quarantined == tally.rows_read for tally in tallies)
    assert all(bad.reason.startswith(str(path)) for tally in tallies for bad in tally.bad)
