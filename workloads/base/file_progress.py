"""Progress of a command that writes files of events."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from workloads.base.dataset import Written


@contextmanager
def file_progress(label: str, num_events: int, num_files: int) -> Iterator[Callable[[Written], None]]:
    """Progress over finished files: a bar on a terminal, else a plain line at every tenth of the files."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _plain_lines(num_files)
        return
    columns = (
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} events"),
        BarColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=num_events)
        yield lambda written: bar.advance(task, written.num_events)


def _plain_lines(num_files: int) -> Callable[[Written], None]:
    every = max(num_files // 10, 1)
    done = 0

    def on_file(_: Written) -> None:
        nonlocal done
        done += 1
        if done % every == 0:
            click.echo(f"{done:,} of {num_files:,} files written", err=True)

    return on_file
