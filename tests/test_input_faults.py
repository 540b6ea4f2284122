"""Every errno at every touch of an input file: what the machine says changes no stream and blames no file."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import damage
import numpy as np
import pytest
from input_faults import ERRNOS, Faults

from common.files.bad_file import BadFileError
from common.files.by_content import ContentReader
from common.files.footers import read_footer
from common.files.rows import BadRowsError
from common.input_errors import GONE, OF_THE_BYTES, OF_THE_PATH, REFUSED, MachineError
from common.messages import Part, Unit
from common.own_faults import PATIENCE_S, OwnFaults
from common.plan import Footer, SlotCapacity, SourceFile, StagedFile, plan_block
from services.decoder.decode import Decode
from services.fetcher.staging.cache import Cache
from services.fetcher.staging.stage import NotStaged, Stage
from workloads.muons.columns import MUONS

KINDS = ("zstd", "gzip", "contiguous")
CAPACITY = SlotCapacity(MUONS, damage.STREAM)
TOUCHES = {
    "zstd": {"open", "fstat", "read", "arrow open", "arrow read"},
    "gzip": {"open", "fstat", "read", "hdf5 open", "hdf5 read"},
    "contiguous": {"open", "fstat", "read", "hdf5 open", "preadv"},
}


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


def raised(function: Callable[..., object], *arguments: object) -> Exception | None:
    """What it raises of what may be expected."""
    try:
        function(*arguments)
    except (MachineError, BadFileError) as error:
        return error
    return None


def test_no_errno_at_a_footer_blames_the_file_but_those_of_its_bytes(kind: str, path: Path, faults: Faults) -> None:
    with faults.counted():
        expected = footer_of(path)
        touches = Counter(faults.touches)
    assert touches.keys() >= TOUCHES[kind]
    for touch, nth, number in faults.walk(touches):
        told = f"{touch} {nth}: {errno.errorcode[number]}"
        with faults.fail(touch, nth, number):
            error = raised(footer_of, path)
        if number in OF_THE_BYTES:
            assert isinstance(error, BadFileError), told
        else:
            assert isinstance(error, MachineError), told
            assert error.number == number, told
            assert str(path) in str(error) or touch in ("hdf5 read", "preadv"), told
    assert footer_of(path) == expected


@pytest.mark.parametrize("known", [False, True])
def test_no_errno_at_staging_quarantines_but_what_is_the_files_own(
    kind: str, path: Path, faults: Faults, tmp_path: Path, known: bool
) -> None:
    source = SourceFile(str(path), path.stat().st_size)
    cache = Cache(tmp_path / "cache", tmp_path / "run")
    stage = Stage(cache, MUONS, damage.STREAM, CAPACITY)
    footer = footer_of(path) if known else None
    sound = stage(0, source, footer)
    assert isinstance(sound, StagedFile)
    assert sound.footer is not None
    for number in ERRNOS:
        stage = Stage(cache, MUONS, damage.STREAM, CAPACITY)
        with faults.fail("stat", 1, number):
            staged = stage(0, source, footer)
        if number in OF_THE_BYTES | OF_THE_PATH | GONE:
            assert isinstance(staged, StagedFile), errno.errorcode[number]
            assert (staged.footer, staged.path) == ((footer, "") if known else (None, str(path)))
            assert known or str(path) in staged.reason
        else:
            assert isinstance(staged, NotStaged), errno.errorcode[number]
            assert str(path) in staged.reason
            assert os.strerror(number) in staged.reason
        assert stage(0, source, footer) == sound
    cache.close()


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
    for touch, nth, number in faults.walk(touches):
        told = f"{touch} {nth}: {errno.errorcode[number]}"
        own = OF_THE_BYTES if remote else OF_THE_BYTES | OF_THE_PATH | GONE
        if touch in ("hdf5 read", "preadv"):  # its file is open: nothing is said of a path any more
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
    touch = {"zstd": "arrow read", "gzip": "hdf5 read", "contiguous": "preadv"}[kind]
    for nth in range(1, touches[touch] + 1):
        with faults.fail(touch, nth, errno.EIO), pytest.raises(MachineError):
            [decoded(unit) for unit in units]
        with faults.counted():
            assert [decoded(unit) for unit in units] == expected
            reader.close()


def test_many_parts_of_a_refused_file_are_one_try(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(part: Part) -> None:
        raise MachineError(f"{path}: Permission denied", errno.EACCES, str(path))

    clock = iter((0.0, 2 * PATIENCE_S, 3 * PATIENCE_S))
    reader = ContentReader(MUONS)
    monkeypatch.setattr(reader, "_kind", refused)
    monkeypatch.setattr(reader, "_own_faults", OwnFaults(lambda: next(clock)))
    parts = [Part(0, str(path), 0, row, 1, 1, file_row=0, file_particle=0) for row in range(5)]
    for _ in range(2):
        with pytest.raises(MachineError):
            reader.read(parts)
    with pytest.raises(BadRowsError, match="Permission denied"):
        reader.read(parts)


def test_too_many_open_files_are_no_fault_of_a_file(kind: str, path: Path, tmp_path: Path) -> None:
    """By the kernel itself."""
    footer = footer_of(path)
    (unit, *_) = units_of(path, footer)
    reader = ContentReader(MUONS)
    slot = np.zeros(damage.STREAM.slot_bytes, np.uint8)
    decode = Decode(MUONS, damage.STREAM, 1, tmp_path, reader)
    decode(unit, slot)
    reader.close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(path, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 20, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(held[0]))
        for num_free in range(3):
            with pytest.raises(MachineError, match="Too many open files") if not num_free else _either():
                assert footer_of(path) == footer
            with pytest.raises(MachineError, match="Too many open files") if not num_free else _either():
                assert decode(unit, slot)[1].quarantined == 0
            reader.close()
            os.close(held.pop())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)
    assert footer_of(path) == footer


class _either:
    """With some descriptors left it works, or is told as above; never as the file's fault."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, MachineError) and error.number == errno.EMFILE


@pytest.mark.parametrize("kept", [0, 100, 5_000])
def test_a_file_that_is_truncated_while_it_is_open_loses_its_rows_by_name(
    kind: str, path: Path, tmp_path: Path, kept: int
) -> None:
    """A mapping would end the process with SIGBUS; HDF5 would read zeros."""
    units = units_of(path, footer_of(path))
    reader = ContentReader(MUONS)
    decode = Decode(MUONS, damage.STREAM, 1, tmp_path, reader)
    slot = np.zeros(damage.STREAM.slot_bytes, np.uint8)
    decode(units[0], slot)
    os.truncate(path, kept)
    tallies = [decode(unit, slot)[1] for unit in units]
    reader.close()
    assert all(tally.quarantined == tally.rows_read for tally in tallies)
    assert all(bad.reason.startswith(str(path)) for tally in tallies for bad in tally.bad)


def test_refused_is_of_the_machine_at_first() -> None:
    assert not REFUSED & (OF_THE_BYTES | OF_THE_PATH | GONE)
