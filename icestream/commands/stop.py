"""Command `icestream stop`: end of a run with a checkpoint, from another terminal."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import click

from common.errors import BadInputError
from common.file_lock import Holder, RunPart, holder_of, is_held_by
from common.options import RunCommand, run_argument
from common.redact import shown
from common.run_words import step_words
from common.status import TrainerStatus
from common.status_files import read_status
from icestream.commands.status.snapshot import read_run, require_run_dir
from icestream.commands.status.view import rows_of

EXAMPLES = """\b
Examples:
  icestream stop runs/mine && icestream run --run-dir runs/mine --decoders 8

\b
Exit codes: 0 it has stopped, or was not running; 1 it failed while it stopped; 2 it can't be stopped from here.
"""
_POLL_S = 0.2
_TELL_S = 5.0
_SHOWN = ("state", "step", "checkpoint", "next")


@click.command(epilog=EXAMPLES, cls=RunCommand)
@run_argument()
def stop(run_dir: Path) -> None:
    """Stop the run in the directory RUN: it writes a checkpoint first, as with Ctrl-C. Waits for its end.

    A run whose services were started one by one loses its trainer; its fetcher and decoders wait for the next one.
    """
    require_run_dir(run_dir)
    part, holder = _stoppable(run_dir)
    if holder is None:
        click.echo(f"{run_dir} is not running")
    else:
        ask_to_stop(run_dir, part, holder)
        _wait(run_dir, holder)
    run = read_run(run_dir)
    for label, text in rows_of(run, time.time()):
        if label in _SHOWN:
            click.echo(f"{label:<11} {text}")
    if holder is not None and run.state in ("failed", "killed"):
        sys.exit(1)


def ask_to_stop(run_dir: Path, part: RunPart, holder: Holder) -> None:
    """Send SIGTERM to the process that holds this lock and to no other. Raises BadInputError if it can't be done."""
    who = f"{holder.what}, process {holder.pid} on {holder.host}"
    if holder.is_alive() is None:
        raise BadInputError(f"{run_dir} is run by {shown(who, 300)}, which can't be seen from here: stop it there")
    try:
        if holder.is_alive() and not is_held_by(run_dir, part, holder):
            raise BadInputError(
                f"{run_dir}: its lock names {shown(who, 300)}, which does not hold it: the note is of somebody else's"
                " making, and nothing was stopped"
            )
        if holder.send(signal.SIGTERM):
            click.echo(f"asked {shown(who, 300)}, to stop; Ctrl-C ends the waiting only")
    except PermissionError:
        raise BadInputError(f"{run_dir} is run by {shown(who, 300)}, of another user: only they can stop it") from None


def _stoppable(run_dir: Path) -> tuple[RunPart, Holder | None]:
    """Lock and process of the run's supervisor, else of its trainer; None if neither runs."""
    parts: tuple[RunPart, ...] = ("run", "trainer")
    for part in parts:
        holder = holder_of(run_dir, part)
        if holder is not None and holder.is_alive() is not False:
            return part, holder
    return "run", None


def _wait(run_dir: Path, holder: Holder) -> None:
    """Wait for the end of the process, and show how far it is."""
    next_line_s = time.monotonic() + _TELL_S
    while holder.is_alive():
        time.sleep(_POLL_S)
        if time.monotonic() >= next_line_s:
            next_line_s += _TELL_S
            trainer = read_status(run_dir, "trainer", TrainerStatus)
            if trainer is not None:
                click.echo(f"still stopping: trainer {trainer.state} at step {step_words(trainer)}")
