"""Command `icestream ranges`: ranges of a run that are done, running, failed and to come."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from common.errors import BadInputError
from common.file_lock import no_other_host
from common.options import run_dir_option
from common.redact import shown
from common.run_dir import CONFIG_FILE
from services.config.root import load_config
from services.fetcher.inventory.ledger import LEDGER_FILE, Ledger, damage_named
from services.fetcher.inventory.ranges import make_ranges

State = Literal["done", "running", "listed", "skipped", "failed", "to come"]


@dataclass(frozen=True)
class RangeLine:
    """Line of the output for one range."""

    name: str
    state: State
    files: int
    bytes: int
    note: str
    """Reason that it was skipped, or could not be listed yet."""


@click.command(epilog="Example: icestream ranges --run-dir runs/osdf")
@run_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
def ranges(run_dir: Path, as_json: bool) -> None:
    """Show the ranges of a run: done, running, listed, skipped, failed, to come.

    A range is done if the newest checkpoint is past it, in its current epoch. Needs no running process.
    """
    if not (run_dir / CONFIG_FILE).is_file() or not (run_dir / LEDGER_FILE).is_file():
        raise BadInputError(f"{run_dir}: no run has begun here; name its directory with --run-dir")
    epoch, lines = range_lines(run_dir)
    if as_json:
        click.echo(json.dumps({"epoch": epoch, "ranges": [asdict(line) for line in lines]}, indent=2))
        return
    for line in lines:
        size = f"{line.files:9,} files {line.bytes / 2**30:9.2f} GiB" if line.files else ""
        click.echo(f"{line.name:15}  {line.state:8}{size}{'  ' if line.note else ''}{line.note}".rstrip())
    counts = Counter(line.state for line in lines)
    click.echo(f"epoch {epoch + 1}: " + ", ".join(f"{number} {state}" for state, number in counts.items()))


def range_lines(run_dir: Path) -> tuple[int, list[RangeLine]]:
    """Epoch and a line for each range. Raises BadInputError."""
    config = load_config(run_dir, environment={})
    path = run_dir / LEDGER_FILE
    with damage_named(path), no_other_host(run_dir, "fetcher"), contextlib.closing(Ledger(path)) as ledger:
        place = ledger.place()
        lines: list[RangeLine] = []
        for index, one in enumerate(make_ranges(config.input, config.fetcher.ranges)):
            name = one.name or "all inputs"
            frozen, failure = ledger.frozen(one), ledger.failure(one)
            done = place is not None and index < place.ranges_done
            running = not done and not any(line.state == "running" for line in lines)
            if frozen is not None and frozen.note:
                lines.append(RangeLine(name, "skipped", 0, 0, shown(frozen.note)))
            elif frozen is not None:
                state: State = "done" if done else "running" if running else "listed"
                lines.append(RangeLine(name, state, frozen.num_files, frozen.bytes, ""))
            elif failure is not None:
                tries, reason = failure
                lines.append(RangeLine(name, "failed", 0, 0, f"{tries} tries: {shown(reason)}"))
            else:
                lines.append(RangeLine(name, "to come", 0, 0, ""))
    return (place.epoch if place is not None else 0), lines
