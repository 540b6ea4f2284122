"""Locks between processes and hosts, and attempts of a run. A second host: a process with another name and boot id."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from common import locks
from common import locks as locking
from common.atomic_file import replacing
from common.errors import BadInputError, IcestreamError, TryAgainError
from icestream.commands.plan import ranges
from services.config.root import Config, store_config
from services.fetcher.ledger import LEDGER_FILE, Ledger

HOLDER = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from common import locks

run_dir, part, host = sys.argv[1:]
if host:
    os.uname = lambda: SimpleNamespace(nodename=host)
    locks._BOOT_ID = Path(run_dir, "boot-id")
    locks._BOOT_ID.write_text(f"boot-of-{host}")
with locks.RunLock(Path(run_dir), part, part):
    print("held", flush=True)
    signal.pause()
"""


@contextmanager
def held_by_another(run_dir: Path, part: locking.RunPart, host: str = "") -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLDER, str(run_dir), part, host]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield holder
        finally:
            holder.kill()


def lock_file(run_dir: Path, part: locking.RunPart = "run") -> Path:
    return run_dir / locking.LOCKS_FOLDER / part


@pytest.mark.process
def test_a_second_host_is_refused_with_the_name_and_the_time_of_the_first(tmp_path: Path) -> None:
    with held_by_another(tmp_path, "trainer", "node-a") as holder:
        told = rf"the run is in use by node-a since [\d-]{{10}} [\d:]{{8}} UTC \(trainer, process {holder.pid}\)"
        with pytest.raises(BadInputError, match=told):
            locking.RunLock(tmp_path, "trainer", "trainer")
        locking.RunLock(tmp_path, "fetcher", "fetcher").close()  # another part of the run


@pytest.mark.process
def test_a_killed_holder_keeps_nobody_out_and_is_named_if_it_was_another_host(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for host, warnings in (("", 0), ("node-a", 1)):
        with held_by_another(tmp_path, "run", host) as holder:
            holder.kill()
            holder.wait()
        assert json.loads(lock_file(tmp_path).read_text())["pid"] == holder.pid, "its note is left"
        with caplog.at_level(logging.WARNING), locking.RunLock(tmp_path, "run", "icestream run"):
            assert json.loads(lock_file(tmp_path).read_text())["pid"] == os.getpid()
        assert len(caplog.records) == warnings
    assert "last used by node-a since" in caplog.text


@pytest.mark.parametrize(
    "note",
    ["", "{", "[]", '{"host": "a"}', "\x00\xff", "9" * 5000]
    + [
        json.dumps({"host": "a", "boot_id": "b", "pid": 1, "since": "now", "what": "run"} | change)
        for change in ({"host": 7}, {"pid": "many"}, {"what": "\x1b]52;c;bad\x07"}, {"since": None}, {"more": 1})
    ],
)
def test_a_note_that_is_none_changes_nothing(tmp_path: Path, note: str) -> None:
    locking.RunLock(tmp_path, "run", "before").close()
    lock_file(tmp_path).write_text(note)
    with locking.RunLock(tmp_path, "run", "icestream run"):
        lock_file(tmp_path).write_text(note)
        with pytest.raises(BadInputError, match="the run is in use by another process;"):
            locking.RunLock(tmp_path, "run", "icestream run")


@pytest.mark.parametrize(("number", "part"), list(zip(locks.NO_LOCKS, locking.RUN_PARTS, strict=True)))
def test_a_file_system_without_locks_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, part: locking.RunPart
) -> None:
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(BadInputError, match=r"without locks .*Lustre: -o flock.*--run-dir"):
        locking.RunLock(tmp_path, part, part)
    with pytest.raises(IcestreamError, match="a file system without locks"):
        locking.begin_attempt(tmp_path)


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / locking.LOCKS_FOLDER).mkdir()
    lock_file(tmp_path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        locking.RunLock(tmp_path, "run", "icestream run")
    assert not (tmp_path / "elsewhere").exists()


# ------------------------------------------------------------------ the ledger, which SQLite can't share between hosts


@pytest.mark.process
@pytest.mark.parametrize(("host", "refused"), [("node-a", True), ("", False)])
def test_ranges_are_told_on_the_host_of_the_fetcher_only(tmp_path: Path, host: str, refused: bool) -> None:
    store_config(tmp_path, Config(input=("x",)))
    Ledger(tmp_path / LEDGER_FILE).close()
    with held_by_another(tmp_path, "fetcher", host):
        result = CliRunner().invoke(ranges, ["--run-dir", str(tmp_path)])
    if refused:
        assert "in use by node-a since" in str(result.exception)
        assert "give this command there" in str(result.exception)
    else:
        assert result.exit_code == 0, result.exception


def test_whoever_reads_the_ledger_keeps_fetchers_out_meanwhile(tmp_path: Path) -> None:
    with locking.no_other_host(tmp_path, "fetcher"), pytest.raises(BadInputError, match="in use by another process"):
        locking.RunLock(tmp_path, "fetcher", "fetcher")
    locking.RunLock(tmp_path, "fetcher", "fetcher").close()


@pytest.mark.process
def test_a_holder_is_alive_until_it_is_killed_and_its_note_stays(tmp_path: Path) -> None:
    with held_by_another(tmp_path, "run") as process:
        holder = locking.holder_of(tmp_path, "run")
        assert holder is not None
        assert (holder.pid, holder.is_alive()) == (process.pid, True)
        assert holder.send(signal.SIGKILL)
        process.wait()
        assert locking.holder_of(tmp_path, "run") == holder
        assert holder.is_alive() is False
        assert not holder.send(signal.SIGTERM)


def test_a_process_that_got_the_pid_of_a_former_holder_is_neither_taken_for_it_nor_signalled(tmp_path: Path) -> None:
    with locking.RunLock(tmp_path, "run", "run"):
        holder = locking.holder_of(tmp_path, "run")
    assert holder is not None
    assert holder.is_alive()
    former = replace(holder, start_ticks=holder.start_ticks - 1)
    assert former.is_alive() is False
    assert not former.send(signal.SIGKILL)  # or the tests would end here
    assert locking.holder_of(tmp_path, "run") is None


def test_a_holder_on_another_host_in_another_container_or_of_an_earlier_version_can_not_be_seen(tmp_path: Path) -> None:
    here = locks.Holder.of_this_process("run")
    assert replace(here, host="node-b", boot_id="b").is_alive() is None
    assert replace(here, pid_namespace="pid:[1]").is_alive() is None
    assert replace(here, start_ticks=0).is_alive() is None
    assert replace(here, boot_id="former").is_alive() is False, "this host was started again"
    assert not replace(here, pid_namespace="pid:[1]").send(signal.SIGKILL)


def test_a_copy_of_a_run_directory_is_held_by_nobody_although_the_note_in_it_is_of_a_living_process(
    tmp_path: Path,
) -> None:
    """Else `icestream stop COPY` would stop the run that was copied."""
    with locking.RunLock(tmp_path / "run", "run", "icestream run"):
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        assert locking.holder_of(tmp_path / "run", "run") is not None
        assert locking.holder_of(tmp_path / "copy", "run") is None


@pytest.mark.process
def test_a_forked_child_neither_keeps_the_lock_after_its_holder_let_it_go_nor_releases_it(tmp_path: Path) -> None:
    lock = locking.RunLock(tmp_path, "run", "icestream.stream")
    go_on, told = os.pipe()
    child = os.fork()
    if child == 0:
        lock.close()  # as __exit__ would
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert locking.holder_of(tmp_path, "run") is not None, "the child has not released its parent's lock"
    child = os.fork()
    if child == 0:
        os.close(told)
        os.read(go_on, 1)
        os._exit(0)
    try:
        lock.close()
        locking.RunLock(tmp_path, "run", "icestream.stream").close()  # while the child has the first one's descriptor
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(go_on)
        os.close(told)


def attempt_file(shared: Path) -> Path:
    return shared / "locks" / "attempt"


def test_the_newest_attempt_publishes_and_an_older_one_fails_before_it_does(tmp_path: Path) -> None:
    assert locking.newest_number(tmp_path) == 0
    older, newer = locking.begin_attempt(tmp_path), locking.begin_attempt(tmp_path)
    assert (older.number, newer.number, locking.newest_number(tmp_path)) == (1, 2, 2)
    with newer.publishing():
        pass
    newer.check()
    told = "attempt 1 of the run in .*, and attempt 2 has begun: nothing more is written"
    with pytest.raises(locking.OutdatedAttemptError, match=told), older.publishing():
        pytest.fail("it published")
    with pytest.raises(locking.OutdatedAttemptError, match=told):
        older.check()


def test_a_file_of_an_older_attempt_does_not_take_its_name(tmp_path: Path) -> None:
    older, path = locking.begin_attempt(tmp_path), tmp_path / "file"
    path.write_text("newer")
    with pytest.raises(locking.OutdatedAttemptError):
        publish(older, path)
    assert [one.name for one in tmp_path.glob("file*")] == ["file"]
    assert path.read_text() == "newer"


def publish(attempt: locking.RunAttempt, path: Path) -> None:
    with replacing(path, durable=True, publishing=attempt.publishing) as part:
        part.write_text("older")
        locking.begin_attempt(path.parent)  # while it writes


def test_no_attempt_begins_while_another_one_publishes(tmp_path: Path) -> None:
    older = locking.begin_attempt(tmp_path)
    found: list[int] = []
    beginning = threading.Thread(target=lambda: found.append(locking.begin_attempt(tmp_path).number))
    with older.publishing():
        beginning.start()
        assert locking.try_lock(attempt_file(tmp_path)) is None
        assert locking.newest_number(tmp_path) == 1
    beginning.join()
    assert found == [2]


def test_writers_of_one_attempt_wait_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that gave up while another process deletes a large checkpoint would have its unit blamed."""
    monkeypatch.setattr(locks, "LOCK_S", 0.0)
    attempt = locking.begin_attempt(tmp_path)
    with attempt.publishing(), attempt.publishing():
        assert locking.newest_number(tmp_path) == 1
    assert locking.begin_attempt(tmp_path).number == 2


def test_a_writer_that_is_frozen_with_the_lock_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCK_S", 0.0)
    with locking.begin_attempt(tmp_path).publishing(), pytest.raises(TryAgainError, match="a node that is frozen"):
        locking.begin_attempt(tmp_path)


def test_the_processes_of_a_node_know_their_attempt(tmp_path: Path) -> None:
    attempt = locking.RunAttempt(tmp_path, 7)
    assert locking.attempt_of(attempt.environment) == attempt
    assert locking.attempt_of({}) is None


@pytest.mark.parametrize("text", ["{", '{"attempt": null}', "7"])
def test_a_damaged_number_is_no_first_attempt(tmp_path: Path, text: str) -> None:
    locking.begin_attempt(tmp_path)
    attempt_file(tmp_path).write_text(text)
    with pytest.raises(IcestreamError, match="not the number of an attempt"):
        locking.begin_attempt(tmp_path)
