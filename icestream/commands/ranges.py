"""Command `icestream ranges`: ranges of a run that are done, running, failed and to come."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Literal

import click

from common.errors import BadInputError
from common.file_lock import no_other_host
from common.options import RunCommand, run_argument
from common.redact import shown
from common.run_dir import CONFIG_FILE, shard_dirs
from common.status import TrainerStatus
from common.status_files import read_status
from icestream.commands.status.of_nodes import is_shared_folder
from services.config.root import load_config
from services.fetcher.inventory.ledger import LEDGER_FILE, CommittedPlace, Ledger, damage_named
from services.fetcher.inventory.ranges import make_ranges

State = Literal["done", "running", "stopped", "listed", "skipped", "failed", "to come"]


@dataclass(frozen=True)
class RangeLine:
    """Line of the output for one range."""

    name: str
    state: State
    files: int
    bytes: int
    note: str
    """Reason that it was skipped, or could not be listed yet."""


@click.command(epilog="Example: icestream ranges runs/osdf", cls=RunCommand)
@run_argument(default="run")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
def ranges(run_dir: Path, as_json: bool) -> None:
    """Show the ranges of the run RUN: done, running (or stopped there), listed, skipped, failed, to come.

    A range is done if the newest checkpoint is past it, in its current epoch. Needs no running process.
    """
    if is_shared_folder(run_dir):
        raise BadInputError(f"{run_dir}: shared by several nodes; name the --run-dir of node 0, on its machine")
    if not (run_dir / CONFIG_FILE).is_file() or not (shard_dirs(run_dir)[0] / LEDGER_FILE).is_file():
        raise BadInputError(f"{run_dir}: no run has begun here; name its directory: icestream ranges RUN")
    epoch, lines = range_lines(run_dir)
    if as_json:
        click.echo(json.dumps({"epoch": epoch, "ranges": [asdict(line) for line in lines]}, indent=2))
        return
    for line in lines:
        size = f"{line.files:9,} files {line.bytes / 2**30:9.2f} GiB" if line.files else ""
        click.echo(f"{line.name:15}  {line.state:8}{size}{'  ' if line.note else ''}{line.note}".rstrip())
    counts = Counter(line.state for line in lines)
    status = read_status(run_dir, "trainer", TrainerStatus)
    has_finished = status is not None and status.state == "finished"
    where = f"finished at step {status.step:,}" if status is not None and has_finished else f"epoch {epoch + 1}"
    click.echo(f"{where}: " + ", ".join(f"{number} {state}" for state, number in counts.items()))


def state_of_current(status: TrainerStatus | None) -> State:
    """State of the range that the newest checkpoint is in."""
    if status is None or status.state not in ("finished", "stopped"):
        return "running"
    by_steps = 0 < status.max_steps <= status.step
    return "done" if status.state == "finished" and not by_steps else "stopped"


def range_lines(run_dir: Path) -> tuple[int, list[RangeLine]]:
    """Epoch and a line for each range. Raises BadInputError."""
    config = load_config(run_dir, environment={})
    first, *others = shard_dirs(run_dir)
    places = [_place(folder) for folder in others]
    path = first / LEDGER_FILE
    current = state_of_current(read_status(run_dir, "trainer", TrainerStatus))
    is_reached = False
    with damage_named(path), no_other_host(first, "fetcher"), contextlib.closing(Ledger(path)) as ledger:
        place = min((found for found in (ledger.place(), *places) if found is not None), key=astuple, default=None)
        lines: list[RangeLine] = []
        for index, one in enumerate(make_ranges(config.input, config.fetcher.ranges, config.fetcher.done)):
            name = one.name or "all inputs"
            frozen, failure = ledger.frozen(one), ledger.failure(one)
            done = place is not None and index < place.ranges_done
            if frozen is not None and frozen.note:
                lines.append(RangeLine(name, "skipped", 0, 0, shown(frozen.note)))
            elif frozen is not None:
                state: State = "done" if done else "listed" if is_reached else current
                is_reached = not done
                lines.append(RangeLine(name, state, frozen.num_files, frozen.bytes, ""))
            elif failure is not None:
                tries, reason = failure
                lines.append(RangeLine(name, "failed", 0, 0, f"{tries} tries: {shown(reason)}"))
            else:
                lines.append(RangeLine(name, "to come", 0, 0, ""))
    return (place.epoch if place is not None else 0), lines


def _place(folder: Path) -> CommittedPlace | None:
    path = folder / LEDGER_FILE
    with damage_named(path), no_other_host(folder, "fetcher"), contextlib.closing(Ledger(path)) as ledger:
        return ledger.place()
