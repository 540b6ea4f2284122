"""Work in a copy of the process, which may end without ending anything else."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from common.apart import CopyEnded, Say, apart

pytestmark = pytest.mark.process


def test_what_the_copy_says_is_heard_and_changes_nothing_here() -> None:
    here: list[int] = []

    def work(say: Say) -> None:
        here.append(1)
        say("one")
        say("two µ")

    assert list(apart(work)) == ["one", "two µ"]
    assert not here


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


def test_an_error_in_the_copy_is_its_own_end(capfd: pytest.CaptureFixture[str]) -> None:
    def work(say: Say) -> None:
        raise RuntimeError("of the copy")

    with pytest.raises(CopyEnded, match="exit code 1") as told:
        list(apart(work))
    assert told.value.is_own
    assert "of the copy" in capfd.readouterr().err


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
