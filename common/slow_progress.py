"""Progress display of a slow command: nothing for two seconds, then a bar, or plain lines without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

QUIET_S = 2.0
_LINE_S = 5.0
_is_shown = ContextVar("_is_shown", default=True)


@contextmanager
def no_progress() -> Iterator[None]:
    """Context without any progress display: for callers in Python, who did not ask for one."""
    before = _is_shown.set(False)
    try:
        yield
    finally:
        _is_shown.reset(before)


def note(text: str) -> None:
    """Print a line about slow work on standard error, where progress is shown."""
    if _is_shown.get():
        click.echo(text, err=True)


class SlowProgress(AbstractContextManager["SlowProgress"]):
    """Progress on standard error. Use it as a context manager and call advance() often."""

    def __init__(
        self,
        what: str,
        total: int,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        to_text: Callable[[int], str] = "{:,}".format,
    ) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._console = console or Console(file=sys.stderr)
        self._clock = clock
        self._to_text = to_text
        self._next_s = clock() + QUIET_S
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: int = 0) -> None:
        """Add to the amount done; 0 only refreshes the display."""
        self._done += amount
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, text=self._text())
        elif _is_shown.get() and self._clock() >= self._next_s:
            if self._console.is_interactive:
                columns = (TextColumn("{task.description} {task.fields[text]}"), BarColumn(), TimeRemainingColumn())
                self._bar = Progress(*columns, console=self._console, transient=True)
                self._task = self._bar.add_task(self._what, total=self._total, completed=self._done, text=self._text())
                self._bar.start()
            else:
                self._next_s = self._clock() + _LINE_S
                click.echo(f"{self._what}: {self._text()}", err=True)

    def reach(self, done: int, total: int) -> None:
        """Set the amount done and the total, for totals that become known later."""
        self._total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)
        self.advance(done - self._done)

    def _text(self) -> str:
        return f"{self._to_text(self._done)} of {self._to_text(self._total)}"
