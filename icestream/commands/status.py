"""Commands `icestream status`, `ls`, `logs` and `stop`: how a run is doing, all runs, a run's logs, and its end."""

from __future__ import annotations

import heapq
import json
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from common.errors import BadInputError
from common.locks import Holder, RunPart, holder_of, is_held_by, parent_of
from common.options import RunCommand, run_argument
from common.paths import open_in_run
from common.run_words import binary_words, counted, done_words, gpu_words, loss_words, restart_words, step_words
from common.status import TrainerStatus, read_status
from common.text import compact_duration, duration, shown
from icestream.commands import snapshot
from services.supervisor.progress import panel

STATUS_EXAMPLES = """\b
Examples:
  icestream status runs/demo                 # refreshes until the run ends, or Ctrl-C (the run continues)
  icestream status runs/demo --once
  icestream status runs/demo --json | jq '.state, .eta_s'
"""
LS_EXAMPLES = """\b
Examples:
  icestream ls                     # the runs below runs/
  icestream ls runs /scratch/me    # below several folders
  icestream ls --json | jq -r '.[] | select(.state == "killed") | .run_dir'
"""
_REFRESH_S = 1.0
_STYLES = {"problem": "bold red", "bottleneck": "yellow", "next": "bold"}
_STATE_STYLES = {"failed": "bold red", "killed": "bold red", "unknown": "bold red", "finished": "green"}
_RESUMABLE = ("interrupted", "failed", "killed")
_DEPTH = 3
"""Levels of folders below a given one in which runs are looked for."""
_WIDE = 200
_COLUMNS = ("run", "state", "model", "step", "done", "events/s", "events", "changed", "size")


@click.command(epilog=STATUS_EXAMPLES, cls=RunCommand)
@run_argument()
@click.option("--once", is_flag=True, help="Print it once, also on a terminal.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print it once, as JSON (docs/reference/status.md names the fields)."
)
def status(run_dir: Path, once: bool, as_json: bool) -> None:
    """Show how a run is doing, or how it ended: progress, bottleneck, checkpoint, health, machine.

    It only reads files in the run directory RUN: the run doesn't notice, and may be on another host.
    """
    run = snapshot.read_run(run_dir)
    if as_json:
        click.echo(run.model_dump_json(indent=2))
        return
    console = Console()
    if once or not run.is_alive or not console.is_interactive:
        click.echo("\n".join(f"{label:<11} {text}" for label, text in rows_of(run, time.time())))
        return
    try:
        with Live(render(run), console=console, auto_refresh=False) as live:
            while run.is_alive:
                time.sleep(_REFRESH_S)
                run = snapshot.read_run(run_dir)
                live.update(render(run), refresh=True)
    except KeyboardInterrupt:  # ends the view alone
        return


def render(run: snapshot.RunSnapshot) -> RenderableType:
    """Return the live view."""
    styles = {**_STYLES, "state": _STATE_STYLES.get(run.state, "")}
    return panel("icestream status", rows_of(run, time.time()), done_share(run), styles)


def done_share(run: snapshot.RunSnapshot) -> float | None:
    """Return the part of the run that is done, by steps; None if it is unknown."""
    if run.state == "finished":
        return 1.0
    return min(1.0, run.step / run.expected_steps) if run.expected_steps else None


# ------------------------------------------------------------------ rows


def rows_of(run: snapshot.RunSnapshot, now_s: float) -> list[tuple[str, str]]:
    """Return the rows of a run, (label, text), for people."""
    health = run.health.state if run.health.state == "healthy" else f"{run.health.state}: {run.health.reason}"
    if run.health.rollbacks:
        health += f", went back to a good checkpoint {counted(run.health.rollbacks, 'time')}"
    if run.health.unhealthy_steps:
        health += f", {counted(run.health.unhealthy_steps, 'line')} in health.jsonl"
    checkpoint = "none"
    if run.checkpoint is not None:
        age = duration(run.checkpoint.age_s)
        checkpoint = f"step {run.checkpoint.step:,}, {age} ago ({run.checkpoint.path})"
    bad = f", {run.files_bad:,} bad (logs/fetcher.log)" if run.files_bad else ""
    rows = [
        ("run", f"{run.run_dir}{_in_brackets(run.workload, run.model, run.device)}"),
        ("state", _state_words(run, now_s)),
        *_training_rows(run),
        ("files", f"{run.files:,}{bad}" if run.files else ""),
        ("problem", run.problem),
        *(("warning", warning) for warning in run.warnings),
        ("bottleneck", run.bottleneck),
        ("last hour", run.bottleneck_hour),
        ("checkpoint", checkpoint),
        ("health", health),
        ("restarts", restart_words(run.restarts) or "none"),
        *_machine_rows(run, now_s),
        ("next", _next_words(run)),
    ]
    return [(label, shown(text, 1000)) for label, text in rows if text]


def _state_words(run: snapshot.RunSnapshot, now_s: float) -> str:
    """Return the state with its times and its reason."""
    text: str = run.state
    if run.is_alive:
        since = f" for {duration(now_s - run.started_s)}" if run.started_s is not None else ""
        return f"{text}{since}: {run.reason}"
    if run.changed_s is not None and run.state not in ("new", "unknown"):
        text += f" {duration(now_s - run.changed_s)} ago"
    return f"{text}: {run.reason}" if run.reason else text


def _training_rows(run: snapshot.RunSnapshot) -> list[tuple[str, str]]:
    if not run.step and not run.is_alive:
        return []
    of_steps = ""
    if run.expected_steps and run.state != "finished":
        of_steps = f" of {'' if run.expected_steps == run.max_steps else 'about '}{run.expected_steps:,}"
    of_epochs = f"/{run.epochs}" if run.epochs else ""
    epoch = min(run.epoch + 1, run.epochs) if run.epochs else run.epoch + 1
    if run.nodes and run.is_alive:
        return [("step", f"{run.step:,}{of_steps} (newest checkpoint)")]
    if run.nodes and not run.trained_s:  # no summary of this end
        return [("step", f"{run.step:,}{of_steps}")]
    eta = f", ETA {duration(run.eta_s) if run.eta_s is not None else 'unknown'}" if run.is_alive else ""
    now = f"{run.events_per_s:,.0f} events/s, {run.particles_per_s:,.0f} particles/s, waits for data"
    share = done_share(run)
    return [
        ("done", done_words(share, run.events_read) if share is not None else ""),
        ("step", f"{run.step:,}{of_steps}, epoch {epoch}{of_epochs}"),
        ("time", f"trained for {duration(run.trained_s)}{eta}"),
        ("speed", f"{now} {100 * run.wait_share:.0f} %" if run.is_alive else ""),
        ("", f"{run.mean_events_per_s:,.0f} events/s on average, {run.events_trained:,} events trained"),
        ("copied", f"{binary_words(run.copied_bytes_per_s)}/s of data" if run.copied_bytes_per_s else ""),
        ("losses", loss_words(run.losses)),
    ]


def _machine_rows(run: snapshot.RunSnapshot, now_s: float) -> list[tuple[str, str]]:
    disk = f"{binary_words(run.disk.free_bytes)} free of {binary_words(run.disk.total_bytes)}"
    if run.disk.budget_bytes:
        disk += f"; staged {binary_words(run.disk.staged_bytes)} of {binary_words(run.disk.budget_bytes)}"
    token = ""
    if run.token_expires_s is not None and run.is_alive:
        left_s = run.token_expires_s - now_s
        token = f"expires in {duration(left_s)}" if left_s > 0 else f"expired {duration(-left_s)} ago"
    processes = [
        f"{one.name} {one.pid}{_in_brackets('' if one.memory_bytes is None else binary_words(one.memory_bytes))}"
        for one in run.processes
    ]
    return [("GPU", gpu_words(run.gpu)), ("disk", disk), ("token", token), ("processes", ", ".join(processes))]


def _next_words(run: snapshot.RunSnapshot) -> str:
    """Return the command that starts the run, or resumes it; empty if there is nothing to start."""
    if run.nodes or run.shared:
        if run.state not in (*_RESUMABLE, "new", "unknown"):
            return ""
        shared, own = (run.shared, quote(run.run_dir)) if run.shared else (run.run_dir, "RUN_DIR")
        run_words = f"icestream run --shared {quote(str(Path(shared)))} --run-dir {own}"
        return f"start it again, by your engine or by hand on all machines: torchrun --nnodes … -m {run_words}"
    what = "start it" if run.state == "new" else "resume" if run.state in _RESUMABLE else ""
    return f"{what}: icestream run --run-dir {quote(str(Path(run.run_dir)))}" if what else ""


def _in_brackets(*parts: str) -> str:
    text = ", ".join(part for part in parts if part)
    return f" ({text})" if text else ""


# ------------------------------------------------------------------ ls


@click.command(epilog=LS_EXAMPLES)
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
    runs = []
    for run_dir in dict.fromkeys(path for place in places for path in _run_dirs(place, _DEPTH)):
        try:
            runs.append(snapshot.read_run(run_dir))
        except BadInputError:  # of another user, or deleted in this moment
            continue
    runs.sort(key=lambda run: -(run.changed_s or 0.0))
    if as_json:
        click.echo(json.dumps([run.model_dump(mode="json") for run in runs], indent=2))
        return
    if not runs:
        click.echo(f"no runs below {', '.join(map(str, places))}")
        return
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        is_text = name in ("run", "state", "model")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=name != "run", overflow="fold")
    for run in runs:
        table.add_row(*_cells(run, time.time()))
    console = Console()
    (console if console.is_terminal else Console(width=_WIDE)).print(table)


def _run_dirs(folder: Path, depth: int) -> Iterator[Path]:
    """Find run directories at or below a folder. Links, and folders of other users, are left out."""
    try:
        if snapshot.is_run_dir(folder):
            yield folder
            return
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return
    for path in below if depth else ():
        yield from _run_dirs(path, depth - 1)


def _cells(run: snapshot.RunSnapshot, now_s: float) -> list[Text]:
    rate = run.events_per_s if run.is_alive else run.mean_events_per_s
    style = "green" if run.is_alive else "red" if run.state in ("failed", "killed", "unknown") else ""
    size_bytes = 0
    for where, _, names in os.walk(run.run_dir):
        for name in names:
            with suppress(FileNotFoundError):  # removed in this moment
                size_bytes += os.lstat(Path(where, name)).st_blocks * 512
    return [
        Text(shown(run.run_dir, 200)),
        Text(run.state, style=style),
        Text(shown(f"{run.workload} {run.model}", 60)),
        Text(f"{run.step:,}" if run.step else ""),
        Text(f"{share:.0%}" if (share := done_share(run)) is not None and run.step else ""),
        Text(f"{rate:,.0f}" if rate else ""),
        Text(f"{run.events_trained:,}" if run.events_trained else ""),
        Text(f"{compact_duration(now_s - run.changed_s)} ago" if run.changed_s is not None else ""),
        Text(binary_words(size_bytes)),
    ]


LOGS_EXAMPLES = """\b
Examples:
  icestream logs runs/mine                  # everything
  icestream logs runs/mine -f               # the newest lines, and those to come
  icestream logs runs/mine trainer -n 50
  icestream logs runs/mine decoder | grep WARNING
"""
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b")
_FOLLOWED_LINES = 20
_FOLLOW_S = 0.5
_LONGEST_LINE = 4000

Line = tuple[str, str, str]
"""Time, process and text; a line without a time has that of the line before."""


@click.command(epilog=LOGS_EXAMPLES, cls=RunCommand)
@run_argument()
@click.argument("service", required=False)
@click.option("-f", "--follow", is_flag=True, help="Continue with new lines until the run ends, or Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Only the last N lines. Default: all; with -f: 20.")
def logs(run_dir: Path, service: str | None, follow: bool, lines: int | None) -> None:
    """Print the logs of the run in the directory RUN, all services merged by time, or those of SERVICE.

    SERVICE is a process (decoder-1) or a service (decoder: all of them). Times are as in the logs, of the run's host.
    """
    snapshot.require_run_dir(run_dir)
    tails = Tails(run_dir / "logs", service)
    if snapshot.is_shared_folder(run_dir):
        first = snapshot.first_node(run_dir)
        where = f", for example {first[0].run_dir} on {first[0].host}" if first is not None else ""
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
        is_alive = (holder := snapshot.occupant(run_dir)) is not None and holder.is_alive() is not False
        _print(tails.new_lines())
        if not is_alive:
            return
        try:
            time.sleep(_FOLLOW_S)
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
        """Return the log files of the wanted services."""
        paths = sorted(self._folder.glob("*.log"))
        return [path for path in paths if self._service in (None, path.stem, path.stem.partition("-")[0])]

    def new_lines(self) -> Iterator[Line]:
        """Return the complete lines that were added since the last call, by time."""
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


STOP_EXAMPLES = """\b
Examples:
  icestream stop runs/mine && icestream run --run-dir runs/mine --decoders 8

\b
Exit codes: 0 it has stopped, or was not running; 1 it failed while it stopped; 2 it can't be stopped from here.
"""
_POLL_S = 0.2
_TELL_S = 5.0
_SHOWN = ("state", "step", "checkpoint", "next")


@click.command(epilog=STOP_EXAMPLES, cls=RunCommand)
@run_argument()
def stop(run_dir: Path) -> None:
    """Stop the run in the directory RUN: it writes a checkpoint first, as with Ctrl-C. Waits for its end.

    A run whose services were started one by one loses its trainer; its fetcher and decoders wait for the next one.
    """
    snapshot.require_run_dir(run_dir)
    part: RunPart = "run"
    holder = holder_of(run_dir, part)
    if holder is None or holder.is_alive() is False:
        part, holder = "trainer", holder_of(run_dir, "trainer")
    if holder is not None and holder.is_alive() is False:
        holder = None
    if holder is None:
        click.echo(f"{run_dir} is not running")
    else:
        ask_to_stop(run_dir, part, holder)
        _wait(run_dir, holder)
    run = snapshot.read_run(run_dir)
    for label, text in rows_of(run, time.time()):
        if label in _SHOWN:
            click.echo(f"{label:<11} {text}")
    if holder is not None and run.state in ("failed", "killed"):
        sys.exit(1)


def ask_to_stop(run_dir: Path, part: RunPart, holder: Holder) -> None:
    """Send SIGTERM to the process that holds this lock and to no other. Raises BadInputError if it can't be done."""
    who = shown(holder.who, 300)
    if holder.is_alive() is None:
        raise BadInputError(f"{run_dir} is run by {who}, which can't be seen from here: stop it there")
    try:
        if holder.is_alive() and not is_held_by(run_dir, part, holder):
            raise BadInputError(
                f"{run_dir}: its lock names {who}, which does not hold it: the note is of somebody else's"
                " making, and nothing was stopped"
            )
        parent = parent_of(holder.pid)
        if _is_torchrun(parent):
            os.kill(parent, signal.SIGTERM)  # it would start the run again; it passes the signal on
            click.echo(f"asked torchrun (process {parent}) to stop; other machines, if any, go on without this one")
        elif holder.send(signal.SIGTERM):
            click.echo(f"asked {who}, to stop; Ctrl-C ends the waiting only")
    except PermissionError:
        raise BadInputError(f"{run_dir} is run by {who}, of another user: only they can stop it") from None


def _is_torchrun(pid: int) -> bool:
    with suppress(FileNotFoundError):  # it has just ended
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        return any(word == "torch.distributed.run" or Path(word).name == "torchrun" for word in words)
    return False


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
