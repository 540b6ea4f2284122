"""Service processes: logs of threads and of lines without end, signals, ends, and work in a copy."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from proc import wait_for

from common import process as rarely
from common.process import PARENT_VARIABLE, CopyEnded, Rarely, Say, apart, is_suspended, tell_thread_errors

ROOT = Path(__file__).resolve().parents[2]


def test_an_error_of_the_disk_in_a_librarys_thread_is_one_line(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: others.append(arguments.exc_type))
    tell_thread_errors()

    for error in (OSError(28, "No space left on device"), ValueError("a bug")):

        def fail(error: Exception = error) -> None:
            raise error

        thread = threading.Thread(target=fail, name="writer")
        thread.start()
        thread.join()

    assert [record.message for record in caplog.records] == ["writer: [Errno 28] No space left on device"]
    assert others == [ValueError]
    assert "Traceback" not in capsys.readouterr().err


Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code in a session of its own, which is killed at the end; it has printed a line."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **pipes))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "here\n"
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.process
def test_a_stopped_process_is_suspended_and_a_sleeping_one_is_not(start: Start) -> None:
    process = start("import time; print('here', flush=True); time.sleep(600)")
    assert not is_suspended(process.pid)
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: is_suspended(process.pid), "its stop")
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: not is_suspended(process.pid), "its going on")


@pytest.mark.process
@pytest.mark.parametrize(("is_child", "stops"), [(False, True), (True, False)])
def test_the_signal_of_a_batch_system_stops_a_service_on_its_own_and_is_left_to_the_parent_of_another(
    is_child: bool, stops: bool
) -> None:
    code = "import os, signal; from common.process import StopFlag; stop = StopFlag(); "
    code += "os.kill(os.getpid(), signal.SIGUSR1); print(bool(stop))"
    environment = os.environ | ({PARENT_VARIABLE: str(os.getpid())} if is_child else {})
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == f"{stops}\n"


def test_a_line_that_comes_without_end_is_told_a_few_times_a_minute_with_how_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(rarely.time, "monotonic", lambda: now_s)
    line = Rarely(logging.getLogger("some service"))
    for i in range(1000):
        line.log("refused %d", i)
    assert [record.getMessage() for record in caplog.records] == [f"refused {i}" for i in range(5)]
    now_s += 60.0
    line.log("refused %s", "another")
    line.log("refused %s", "one more")
    assert [record.getMessage() for record in caplog.records[5:]] == [
        "refused another (and 995 more like it)",
        "refused one more",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


NEVER_ENDS = """
import ctypes, signal, sys
from common.process import StopFlag, end_after_stop
stop = StopFlag()
end_after_stop(0.05)
print("here", flush=True)
while True: ctypes.CDLL(None).select(0, None, None, None, None)
"""


@pytest.mark.process
def test_a_process_that_does_not_stop_ends_after_its_deadline(start: Start) -> None:
    process = start(NEVER_ENDS)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60.0) == -signal.SIGKILL
    assert process.stderr is not None
    assert "asked to stop 0.05 s ago" in process.stderr.read()


@pytest.mark.process
def test_what_the_copy_says_is_heard_and_changes_nothing_here() -> None:
    here: list[int] = []

    def work(say: Say) -> None:
        here.append(1)
        say("one")
        say("two µ")

    assert list(apart(work)) == ["one", "two µ"]
    assert not here


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "is_own"),
    [(signal.SIGSEGV, True), (signal.SIGABRT, True), (signal.SIGKILL, False), (signal.SIGBUS, False)],
)
def test_the_end_of_the_copy_is_told_with_what_it_said_before(number: signal.Signals, is_own: bool) -> None:
    def work(say: Say) -> None:
        say("before")
        os.kill(os.getpid(), number)

    heard: list[str] = []
    with pytest.raises(CopyEnded, match=number.name) as told:
        heard.extend(apart(work))
    assert heard == ["before"]
    assert told.value.is_own == is_own


@pytest.mark.process
def test_an_error_in_the_copy_is_its_own_end(capfd: pytest.CaptureFixture[str]) -> None:
    def work(say: Say) -> None:
        raise RuntimeError("of the copy")

    with pytest.raises(CopyEnded, match="exit code 1") as told:
        list(apart(work))
    assert told.value.is_own
    assert "of the copy" in capfd.readouterr().err


@pytest.mark.process
def test_a_copy_that_nobody_hears_any_more_ends_and_may_remove_its_file(tmp_path: Path) -> None:
    unfinished = tmp_path / "part"

    def work(say: Say) -> None:
        unfinished.touch()
        try:
            say(str(os.getpid()))
            time.sleep(100)
        finally:
            unfinished.unlink()

    with closing(apart(work)) as lines:  # type: ignore[type-var]
        pid = int(next(lines))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not unfinished.exists()
