from __future__ import annotations

import io

import pytest
from rich.console import Console

from common.slow_progress import QUIET_S, SlowProgress


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_quick_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with SlowProgress("files", 10, clock=clock) as progress:
        clock.now_s += 0.9 * QUIET_S
        progress.advance(10)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_there_is_a_plain_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with SlowProgress("files", 5000, console=Console(file=io.StringIO()), clock=clock) as progress:
        for _ in range(12):
            clock.now_s += 1
            progress.advance(100)
    assert capsys.readouterr().err.splitlines() == [
        "files: 200 of 5,000",
        "files: 700 of 5,000",
        "files: 1,200 of 5,000",
    ]


def test_a_terminal_shows_a_bar_and_it_is_gone_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with SlowProgress("merged", 4 << 20, console=console, clock=clock, to_text=lambda n: f"{n >> 20} MiB") as progress:
        clock.now_s += QUIET_S
        progress.advance(1 << 20)
        progress.advance(1 << 20)
    assert "merged 1 MiB of 4 MiB" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")
    assert capsys.readouterr() == ("", "")
