"""Attempts of a run on several nodes: a writer of an older one publishes nothing."""

from __future__ import annotations

import errno
import fcntl
import threading
from pathlib import Path

import pytest

from common import attempt as module
from common.atomic_file import replacing
from common.attempt import OutdatedAttemptError, RunAttempt, attempt_of, begin_attempt, newest_number, publishing_of
from common.errors import IcestreamError, TryAgainError
from common.file_lock import try_lock


def lock_file(shared: Path) -> Path:
    return shared / "locks" / "attempt"


def test_attempts_are_counted_from_one(tmp_path: Path) -> None:
    assert newest_number(tmp_path) == 0
    assert [begin_attempt(tmp_path).number for _ in range(3)] == [1, 2, 3]
    assert newest_number(tmp_path) == 3


def test_the_newest_attempt_publishes_and_an_older_one_fails_before_it_does(tmp_path: Path) -> None:
    older, newer = begin_attempt(tmp_path), begin_attempt(tmp_path)
    with newer.publishing():
        pass
    newer.check()
    told = "attempt 1 of the run in .*, and attempt 2 has begun: nothing more is written"
    with pytest.raises(OutdatedAttemptError, match=told), older.publishing():
        pytest.fail("it published")
    with pytest.raises(OutdatedAttemptError, match=told):
        older.check()


def test_a_file_of_an_older_attempt_does_not_take_its_name(tmp_path: Path) -> None:
    older, path = begin_attempt(tmp_path), tmp_path / "file"
    path.write_text("newer")
    with pytest.raises(OutdatedAttemptError):
        publish(older, path)
    assert [one.name for one in tmp_path.glob("file*")] == ["file"]
    assert path.read_text() == "newer"


def publish(attempt: RunAttempt, path: Path) -> None:
    with replacing(path, durable=True, publishing=attempt.publishing) as part:
        part.write_text("older")
        begin_attempt(path.parent)  # while it writes


def test_no_attempt_begins_while_another_one_publishes(tmp_path: Path) -> None:
    older = begin_attempt(tmp_path)
    found: list[int] = []
    beginning = threading.Thread(target=lambda: found.append(begin_attempt(tmp_path).number))
    with older.publishing():
        beginning.start()
        assert try_lock(lock_file(tmp_path)) is None
        assert newest_number(tmp_path) == 1
    beginning.join()
    assert found == [2]


def test_writers_of_one_attempt_wait_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that gave up while another process deletes a large checkpoint would have its unit blamed."""
    monkeypatch.setattr(module, "LOCK_S", 0.0)
    attempt = begin_attempt(tmp_path)
    with attempt.publishing(), attempt.publishing():
        assert newest_number(tmp_path) == 1
    assert begin_attempt(tmp_path).number == 2


def test_a_writer_that_is_frozen_with_the_lock_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_S", 0.0)
    with begin_attempt(tmp_path).publishing(), pytest.raises(TryAgainError, match="a node that is frozen"):
        begin_attempt(tmp_path)


def test_the_processes_of_a_node_know_their_attempt(tmp_path: Path) -> None:
    attempt = RunAttempt(tmp_path, 7)
    assert attempt_of(attempt.environment) == attempt
    assert attempt_of({}) is None


def test_the_number_is_written_in_one_piece_of_one_length(tmp_path: Path) -> None:
    sizes = set()
    for _ in range(12):
        begin_attempt(tmp_path)
        sizes.add(lock_file(tmp_path).stat().st_size)
    assert sizes == {64}


@pytest.mark.parametrize("text", ["{", '{"attempt": null}', "7"])
def test_a_damaged_number_is_no_first_attempt(tmp_path: Path, text: str) -> None:
    begin_attempt(tmp_path)
    lock_file(tmp_path).write_text(text)
    with pytest.raises(IcestreamError, match="not the number of an attempt"):
        begin_attempt(tmp_path)


def test_a_writer_killed_before_its_first_byte_leaves_no_attempt(tmp_path: Path) -> None:
    lock_file(tmp_path).parent.mkdir()
    lock_file(tmp_path).touch()
    assert begin_attempt(tmp_path).number == 1


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(IcestreamError, match="a file system without locks"):
        begin_attempt(tmp_path)


def test_a_run_on_one_machine_has_no_attempts(tmp_path: Path) -> None:
    with publishing_of(None)():
        pass
    assert publishing_of(begin_attempt(tmp_path))() is not None
