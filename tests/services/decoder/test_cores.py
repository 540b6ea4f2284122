"""Cores of a decoder's own, with real processes: claims go with whoever holds them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.errors import BadInputError
from services.decoder.cores import MATH_THREADS, ClaimedCores, limit_math_threads, pin_to_own_cores

ROOT = Path(__file__).resolve().parent.parent.parent.parent
CLAIM = f"icestream-test-{os.getpid()}"
"""Claims of this test run: decoders and other tests on this machine are not in the way."""
NO_CORES = (60_001, 60_002, 60_003)
"""No machine has them."""

USE_OWN_CLAIMS = f"import services.decoder.cores\nservices.decoder.cores._CLAIM = {CLAIM!r}\n"

HOLDER = """
import sys
from services.decoder.cores import ClaimedCores
claimed = ClaimedCores()
claimed.claim([int(core) for core in sys.argv[2:]], int(sys.argv[1]))
print(*claimed.cores, flush=True)
sys.stdin.read()
"""

PINNED = """
import logging, os, sys
logging.basicConfig()
from services.decoder.cores import pin_to_own_cores
claimed = pin_to_own_cores(sys.argv[1], int(sys.argv[2]))
print(sorted(os.sched_getaffinity(0)), claimed.cores, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.decoder.cores._CLAIM", CLAIM)


@contextmanager
def process(script: str, *arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that runs the script, and the first line that it prints; it is ended behind the block."""
    command = [sys.executable, "-c", USE_OWN_CLAIMS + script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as popen:  # type: ignore[call-overload]
        try:
            yield popen, popen.stdout.readline().strip()
        finally:
            popen.kill()


@pytest.mark.process
def test_two_processes_get_different_cores() -> None:
    with process(HOLDER, 1, *NO_CORES) as (_, first), process(HOLDER, 2, *NO_CORES) as (_, second):
        assert (first, second) == ("60001", "60002 60003")


@pytest.mark.process
def test_a_killed_process_leaves_its_cores_free() -> None:
    with process(HOLDER, 1, NO_CORES[0]) as (popen, held):
        assert held == "60001"
        assert not ClaimedCores().claim(NO_CORES[:1], 1)
        popen.kill()
        popen.wait(60)
        claimed = ClaimedCores()
        assert claimed.claim(NO_CORES[:1], 1)
        claimed.release()


def test_who_can_not_get_enough_cores_takes_none() -> None:
    greedy, modest = ClaimedCores(), ClaimedCores()
    assert not greedy.claim(NO_CORES, 4)
    assert greedy.cores == ()
    assert modest.claim(NO_CORES, 3)
    assert modest.cores == NO_CORES
    modest.release()


def test_released_cores_are_free() -> None:
    claimed, other = ClaimedCores(), ClaimedCores()
    assert claimed.claim(NO_CORES, 1)
    claimed.release()
    assert other.claim(NO_CORES, 3)
    other.release()


@pytest.mark.process
def test_pinned_processes_run_on_their_own_cores_and_one_without_a_core_runs_unpinned_with_a_warning() -> None:
    usable = sorted(os.sched_getaffinity(0))
    last = str(usable[-1])
    with process(PINNED, last, 1) as (_, first):
        assert first == f"[{last}] ({last},)"
        with process(PINNED, last, 1) as (popen, second):
            assert second == f"{usable} ()"
            popen.stdin.close()  # type: ignore[union-attr]
            assert f"decoder.affinity = '{last}': fewer than decoder.threads = 1" in popen.stderr.read()  # type: ignore[union-attr]


@pytest.mark.process
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_auto_gives_each_process_a_core_of_its_own() -> None:
    with process(PINNED, "auto", 1) as (_, first), process(PINNED, "auto", 1) as (_, second):
        assert first.count(",") == second.count(",") == 1
        assert first != second


def test_without_affinity_nothing_is_claimed_or_pinned() -> None:
    before = os.sched_getaffinity(0)
    assert pin_to_own_cores("", 1).cores == ()
    assert os.sched_getaffinity(0) == before


def test_a_core_that_the_process_may_not_use_is_named() -> None:
    with pytest.raises(BadInputError, match=r"decoder.affinity = '0-60001': this process may not use core \d+, only "):
        pin_to_own_cores("0-60001", 1)


def test_math_threads_are_set_where_the_user_has_not() -> None:
    environment = {"MKL_NUM_THREADS": "7"}
    limit_math_threads(2, environment)
    assert environment == dict.fromkeys(MATH_THREADS, "2") | {"MKL_NUM_THREADS": "7"}
