"""Errors of background threads, and the state of other processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from common.process import PARENT_VARIABLE, is_suspended, tell_thread_errors


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


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start Python code in a session of its own, which is killed at the end; it has printed a line."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-S", "-u", "-c", code]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "here\n"
        return started[-1]

    yield run
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def comes_true(condition: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return condition()


@pytest.mark.process
def test_a_stopped_process_is_suspended_and_a_sleeping_one_is_not(
    start: Callable[[str], subprocess.Popen[str]],
) -> None:
    process = start("import time; print('here'); time.sleep(600)")
    assert not is_suspended(process.pid)
    process.send_signal(signal.SIGSTOP)
    assert comes_true(lambda: is_suspended(process.pid))
    process.send_signal(signal.SIGCONT)
    assert comes_true(lambda: not is_suspended(process.pid))


@pytest.mark.process
def test_a_process_in_uninterruptible_sleep_is_suspended(start: Callable[[str], subprocess.Popen[str]]) -> None:
    """The parent of a vfork sleeps like that until its child ends."""
    process = start("import ctypes; print('here'); c = ctypes.CDLL(None); c.vfork() or c.pause()")
    assert comes_true(lambda: is_suspended(process.pid))


def test_a_process_that_can_not_be_seen_is_not_called_suspended() -> None:
    assert not is_suspended(2**22 + 1)


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
