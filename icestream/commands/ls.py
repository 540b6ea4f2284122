"""Command `icestream ls`: table of runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.durations import compact_duration
from common.errors import BadInputError
from common.redact import shown
from icestream.commands.status.snapshot import RunSnapshot, is_run_dir, read_run
from icestream.commands.status.view import gib

EXAMPLES = """\b
Examples:
  icestream ls                     # the runs below runs/
  icestream ls runs /scratch/me    # below several folders
  icestream ls --json | jq -r '.[] | select(.state == "killed") | .run_dir'
"""
_DEPTH = 3
_WIDE = 200
_COLUMNS = ("run", "state", "model", "step", "done", "events/s", "events", "changed", "size")
_STYLES = {"running": "green", "failed": "red", "killed": "red", "unknown": "red"}


@click.command(epilog=EXAMPLES)
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the status of each as JSON (docs/reference/status.md).")
def ls(folders: tuple[Path, ...], as_json: bool) -> None:
    """List the runs below FOLDERS (default: runs), the newest first, with their state.

    events/s is the present rate of a run that runs, the mean one of any other.
    """
    places = folders or (Path("runs"),)
    for place in places:
        if not place.is_dir():
            raise BadInputError(f"{place}: no such folder; name the one that holds your run directories")
    runs = sorted(found_runs(places), key=lambda run: -(run.changed_s or 0.0))
    if as_json:
        click.echo(json.dumps([run.model_dump(mode="json") for run in runs], indent=2))
        return
    if not runs:
        click.echo(f"no runs below {', '.join(map(str, places))}")
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    console.print(table(runs, time.time()))


def found_runs(places: Sequence[Path]) -> Iterator[RunSnapshot]:
    """Snapshot of each run at or below the folders. Folders of other users are left out."""
    for run_dir in dict.fromkeys(path for place in places for path in _run_dirs(place, _DEPTH)):
        try:
            yield read_run(run_dir)
        except BadInputError:  # deleted in this moment
            continue


def _run_dirs(folder: Path, depth: int) -> Iterator[Path]:
    try:
        if is_run_dir(folder):
            yield folder
            return
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return
    for path in below if depth else ():
        yield from _run_dirs(path, depth - 1)


def table(runs: Sequence[RunSnapshot], now_s: float) -> Table:
    """Table of runs, a row each."""
    made = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        made.add_column(name, justify="left" if name in ("run", "state", "model") else "right", no_wrap=True)
    made.columns[0].overflow = "fold"
    made.columns[0].no_wrap = False
    for run in runs:
        made.add_row(
            *(Text(text, style=_style(name, run)) for name, text in zip(_COLUMNS, cells(run, now_s), strict=True))
        )
    return made


def cells(run: RunSnapshot, now_s: float) -> tuple[str, ...]:
    """Cells of a run's row."""
    rate = run.events_per_s if run.is_alive else run.mean_events_per_s
    done = f"{min(1.0, run.step / run.expected_steps):.0%}" if run.expected_steps else ""
    return (
        shown(run.run_dir, 200),
        run.state,
        shown(f"{run.workload} {run.model}", 60),
        f"{run.step:,}" if run.step else "",
        done,
        f"{rate:,.0f}" if rate else "",
        f"{run.events_trained:,}" if run.events_trained else "",
        f"{compact_duration(now_s - run.changed_s)} ago" if run.changed_s is not None else "",
        gib(_size_bytes(Path(run.run_dir))),
    )


def _style(column: str, run: RunSnapshot) -> str:
    return _STYLES.get(run.state, "") if column == "state" else ""


def _size_bytes(folder: Path) -> int:
    """Bytes of all files below the folder; links count nothing."""
    size = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(Path(where, name))
            except FileNotFoundError:
                continue
            size += status.st_blocks * 512
    return size
