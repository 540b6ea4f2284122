"""Command `icestream logs`: log lines of a run's services, merged by time."""

from __future__ import annotations

import heapq
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from common.errors import BadInputError
from common.options import RunCommand, run_argument
from common.redact import shown
from common.run_dir import open_in_run
from icestream.commands.status.of_nodes import first_node, is_shared_folder
from icestream.commands.status.snapshot import occupant, require_run_dir

EXAMPLES = """\b
Examples:
  icestream logs runs/mine                  # everything
  icestream logs runs/mine -f               # the newest lines, and those to come
  icestream logs runs/mine trainer -n 50
  icestream logs runs/mine decoder | grep WARNING
"""
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b")
_FOLLOWED_LINES = 20
_POLL_S = 0.5
_LONGEST_LINE = 4000

Line = tuple[str, str, str]
"""Time, process and text; a line without a time has that of the line before."""


@click.command(epilog=EXAMPLES, cls=RunCommand)
@run_argument()
@click.argument("service", required=False)
@click.option("-f", "--follow", is_flag=True, help="Continue with new lines until the run ends, or Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Only the last N lines. Default: all; with -f: 20.")
def logs(run_dir: Path, service: str | None, follow: bool, lines: int | None) -> None:
    """Print the logs of the run in the directory RUN, all services merged by time, or those of SERVICE.

    SERVICE is a process (decoder-1) or a service (decoder: all of them). Times are as in the logs, of the run's host.
    """
    require_run_dir(run_dir)
    tails = Tails(run_dir / "logs", service)
    if is_shared_folder(run_dir):
        first = first_node(run_dir)
        where = f", for example {first.note.run_dir} on {first.note.host}" if first is not None else ""
        raise BadInputError(
            f"{run_dir}: each node has its logs in its own --run-dir, on its machine{shown(where, 300)}"
        )
    names = sorted(path.stem for path in (run_dir / "logs").glob("*.log"))
    if service is not None and not tails.paths():
        raise BadInputError(f"{run_dir}: no log of {service!r}; there are: {', '.join(names) or 'none yet'}")
    wanted = lines if lines is not None or not follow else _FOLLOWED_LINES
    found = tails.new_lines()
    _print(found if wanted is None else deque(found, maxlen=wanted))
    while follow:
        is_alive = (holder := occupant(run_dir)) is not None and holder.is_alive() is not False
        _print(tails.new_lines())
        if not is_alive:
            return
        try:
            time.sleep(_POLL_S)
        except KeyboardInterrupt:
            return


class Tails:
    """Log files of a run, read from where they were read before."""

    def __init__(self, folder: Path, service: str | None) -> None:
        self._folder = folder
        self._service = service
        self._read: dict[Path, int] = {}
        self._times: dict[Path, str] = {}

    def paths(self) -> list[Path]:
        """Log files of the wanted services."""
        paths = sorted(self._folder.glob("*.log"))
        return [path for path in paths if self._service in (None, path.stem, path.stem.partition("-")[0])]

    def new_lines(self) -> Iterator[Line]:
        """Complete lines that were added since the last call, by time."""
        return heapq.merge(*(self._lines(path) for path in self.paths()), key=lambda line: line[0])

    def _lines(self, path: Path) -> Iterator[Line]:
        with open_in_run(path) as file:
            position = self._read.get(path, 0)
            if position > path.stat().st_size:  # --fresh has begun it again
                position = 0
            file.seek(position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                position += len(line)
                self._read[path] = position
                text = line.decode(errors="replace").rstrip("\n")
                if stamp := _TIME.match(text):
                    self._times[path] = stamp[0]
                yield self._times.get(path, ""), path.stem, text


def _print(lines: Iterable[Line]) -> None:
    for _, name, text in lines:
        click.echo(f"{name:<10} {shown(text, _LONGEST_LINE)}")
