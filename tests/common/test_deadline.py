"""The end of a process that was asked to stop and does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

BOUND_S = 60.0
ROOT = Path(__file__).resolve().parents[2]
SETUP = """
import ctypes, signal, sys
from common.deadline import end_after_stop
from common.process import StopFlag
stop = StopFlag()
end_after_stop(float(sys.argv[1]))
print("here", flush=True)
"""
NEVER_ENDS = SETUP + "while True: ctypes.CDLL(None).select(0, None, None, None, None)"

Start = Callable[[str, float], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str, deadline_s: float) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, str(deadline_s)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.process
def test_a_process_that_does_not_stop_ends_after_its_deadline(start: Start) -> None:
    process = start(NEVER_ENDS, 0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(BOUND_S) == -signal.SIGKILL
    assert process.stderr is not None
    assert b"asked to stop 0.05 s ago" in process.stderr.read()


@pytest.mark.process
def test_a_process_that_stops_by_itself_is_left_alone(start: Start) -> None:
    process = start(SETUP + "while not stop: signal.pause()\nprint('stopped')", BOUND_S)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=BOUND_S)
    assert (process.returncode, out, err) == (0, b"stopped\n", b"")


@pytest.mark.process
def test_other_signals_set_no_deadline(start: Start) -> None:
    code = SETUP + "signal.signal(signal.SIGALRM, lambda *_: print('alarm', flush=True))\nprint('set', flush=True)\n"
    process = start(code + "while not stop: signal.pause()", 0.0)
    assert process.stdout is not None
    assert process.stdout.readline() == b"set\n"
    process.send_signal(signal.SIGALRM)
    assert process.stdout.readline() == b"alarm\n"
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(BOUND_S) in (0, -signal.SIGKILL)
