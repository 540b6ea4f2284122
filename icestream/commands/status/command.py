"""Command `icestream status`."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from common.options import RunCommand, run_argument
from icestream.commands.status.snapshot import RunSnapshot, read_run
from icestream.commands.status.view import done_share, rows_of

EXAMPLES = """\b
Examples:
  icestream status runs/demo                 # refreshes until the run ends, or Ctrl-C (the run continues)
  icestream status runs/demo --once
  icestream status runs/demo --json | jq '.state, .eta_s'
"""
_REFRESH_S = 1.0
_STYLES = {"problem": "bold red", "bottleneck": "yellow", "next": "bold"}
_STATE_STYLES = {"failed": "bold red", "killed": "bold red", "unknown": "bold red", "finished": "green"}


@click.command(epilog=EXAMPLES, cls=RunCommand)
@run_argument()
@click.option("--once", is_flag=True, help="Print it once, also on a terminal.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print it once, as JSON (docs/reference/status.md names the fields)."
)
def status(run_dir: Path, once: bool, as_json: bool) -> None:
    """Show how a run is doing, or how it ended: progress, bottleneck, checkpoint, health, machine.

    It only reads files in the run directory RUN: the run doesn't notice, and may be on another host.
    """
    if as_json:
        click.echo(read_run(run_dir).model_dump_json(indent=2))
        return
    console = Console()
    run = read_run(run_dir)
    if once or not run.is_alive or not console.is_interactive:
        for label, text in rows_of(run, time.time()):
            click.echo(f"{label:<11} {text}")
        return
    _follow(run_dir, run, console)


def _follow(run_dir: Path, run: RunSnapshot, console: Console) -> None:
    """Live view until the run ends; Ctrl-C ends the view alone."""
    try:
        with Live(render(run), console=console, auto_refresh=False) as live:
            while run.is_alive:
                time.sleep(_REFRESH_S)
                run = read_run(run_dir)
                live.update(render(run), refresh=True)
    except KeyboardInterrupt:
        return


def render(run: RunSnapshot) -> RenderableType:
    """Rendered live view."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan", justify="right")
    table.add_column()
    done = done_share(run)
    for label, text in rows_of(run, time.time()):
        style = _STATE_STYLES.get(run.state, "") if label == "state" else _STYLES.get(label, "")
        table.add_row(label, Text(text, style=style))
        if label == "state" and done is not None:
            table.add_row("done", ProgressBar(total=1.0, completed=done, width=50))
    return Panel(table, title="icestream status", title_align="left", expand=False)
