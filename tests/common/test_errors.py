from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from common import errors

BYTES = {"EINVAL", "EFBIG", "EOVERFLOW", "ENODATA"}
PATH = {"ENOENT", "ENOTDIR", "EISDIR", "ELOOP", "ENAMETOOLONG"}
REFUSED = {"EACCES", "EPERM"}
NEVER_THE_FILES = sorted(set(errno.errorcode.values()) - BYTES - PATH - REFUSED)


def test_an_errno_is_of_the_machine_unless_bytes_lead_to_it() -> None:
    told = {name: errors.machine_errno(OSError(number, "")) for number, name in errno.errorcode.items()}
    assert told == {name: 0 if name in BYTES else number for number, name in errno.errorcode.items()}
    assert {"EIO", "ESTALE", "ENOMEM", "EMFILE", "EACCES", "ENOENT"} <= {name for name in told if told[name]}


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (MemoryError(), errno.ENOMEM),
        (pa.ArrowMemoryError("malloc of size 7"), errno.ENOMEM),
        (pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily"), errno.EAGAIN),
    ],
)
def test_memory_and_threads_are_of_the_machine(error: Exception, number: int) -> None:
    with pytest.raises(errors.MachineError, match=f"f: {os.strerror(number)}") as told:
        errors.raise_if_machine(error, "f")
    assert told.value.number == number


@pytest.mark.parametrize(
    "error", [OSError("Unexpected end of stream"), pa.ArrowInvalid("no Parquet"), KeyError("x"), RuntimeError()]
)
def test_what_libraries_say_without_an_errno_is_of_the_bytes(error: Exception) -> None:
    assert isinstance(error, errors.LIBRARY_ERRORS)
    errors.raise_if_machine(error, "f")


# ------------------------------------------------------------------ what is a file's own fault


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def own(clock: Clock) -> errors.OwnFaults:
    return errors.OwnFaults(clock)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """In a folder of its own, without another file."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "f.parquet"


def refuse(
    own: errors.OwnFaults, clock: Clock, path: Path, times: int = errors.TRIES, for_s: float = errors.PATIENCE_S
) -> bool:
    """The last answer."""
    is_own = False
    for _ in range(times):
        is_own = own.is_own(path, errno.EACCES)
        clock.now_s += for_s / (times - 1) if times > 1 else 0
    return is_own


def test_a_file_is_gone_only_while_its_folder_holds_something(own: errors.OwnFaults, path: Path) -> None:
    assert not own.is_own(path, errno.ENOENT), "nothing may be mounted there"
    assert not own.is_own(path / "f.parquet", errno.ENOENT)
    (path.parent / "other").touch()
    assert own.is_own(path, errno.ENOENT)


def test_only_a_path_that_can_not_be_one_is_a_files_own_at_once_and_of_the_machine_nothing_ever_is(
    own: errors.OwnFaults, clock: Clock, path: Path
) -> None:
    (path.parent / "other").touch()
    assert [name for name in sorted(PATH) if not own.is_own(path, getattr(errno, name))] == []
    for _ in range(20):
        assert [name for name in NEVER_THE_FILES if own.is_own(path, getattr(errno, name))] == []
        clock.now_s += 3600.0


def test_a_refused_file_is_at_fault_after_some_tries_and_some_time_if_its_neighbour_opens(
    own: errors.OwnFaults, clock: Clock, path: Path
) -> None:
    (path.parent / "other").touch()
    assert not refuse(own, clock, path, times=errors.TRIES * 5, for_s=errors.PATIENCE_S / 2), "too soon"
    clock.now_s += errors.PATIENCE_S
    assert own.is_own(path, errno.EPERM)
    other = path.with_name("g.parquet")
    assert not own.is_own(other, errno.EACCES)
    clock.now_s += 10 * errors.PATIENCE_S
    assert not own.is_own(other, errno.EACCES), "it was tried twice only"


def test_a_place_where_everything_is_refused_is_waited_for(
    own: errors.OwnFaults, clock: Clock, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = path.parent / "other"
    other.touch()
    own.worked(other)

    def refused(*arguments: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    assert not refuse(own, clock, path, times=50, for_s=3600.0)
    monkeypatch.undo()
    assert own.is_own(path, errno.EACCES), "the others can be opened again, and it can't"


def test_a_folder_in_which_nothing_can_be_read_is_at_fault_while_others_of_its_file_system_can(
    own: errors.OwnFaults, clock: Clock, path: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    assert not refuse(own, clock, path, for_s=2 * errors.PATIENCE_S, times=10)
    own.worked(elsewhere)
    assert own.is_own(path, errno.EACCES)


def test_a_file_that_could_be_read_again_begins_anew(own: errors.OwnFaults, clock: Clock, path: Path) -> None:
    (path.parent / "other").touch()
    path.touch()
    refuse(own, clock, path, times=2)
    clock.now_s += errors.PATIENCE_S
    own.worked(path)
    assert not own.is_own(path, errno.EACCES)


def test_a_refusal_of_long_ago_is_forgotten(own: errors.OwnFaults, clock: Clock, path: Path) -> None:
    (path.parent / "other").touch()
    for _ in range(5):
        assert not refuse(own, clock, path, times=errors.TRIES, for_s=errors.PATIENCE_S / 2), "a hiccup"
        clock.now_s += errors.FORGET_S
    assert not own.is_own(path, errno.EACCES)
    for _ in range(errors.TRIES - 1):
        clock.now_s += errors.FORGET_S / 2
        is_own = own.is_own(path, errno.EACCES)
    assert is_own, "rare tries count, too"
