"""The output of a session: the progress on the screen, its record, and its log.

On the screen the newest status of the services stands as a live view or as plain lines. `status/run.json` has the
processes, restarts and end, for readers such as `icestream status`; `logs/supervisor.log` what was said and done.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from common import run_words
from common.paths import shard_dir
from common.process import RedactingFormatter
from common.status import (
    FetcherStatus,
    RunStatus,
    StatusType,
    TrainerStatus,
    fetchers_together,
    read_status,
    write_status,
)
from common.text import duration
from services.supervisor.child import FETCHER, LOGS_FOLDER, TRAINER, service_of, shard_of
from services.supervisor.supervisor import Processes, SessionOutcome

RUN_STATUS = "run"
SUPERVISOR_LOG = "supervisor.log"
FIRST_LINE_S, PLAIN_LINE_S = 5.0, 30.0
"""Seconds to the first line without a terminal, then twice as many each time, up to the second number."""

_MOST_SAID = 20
"""Newest lines above the live view that a resized terminal shows again."""
_ECHO_COLUMNS = 6
"""Room for the terminal's echo of a few Ctrl-C."""
_STYLES = {"bottleneck": "yellow", "problem": "bold red", "health": "bold red"}


@dataclass(frozen=True)
class ProgressModel:
    """Content of the display: rows of (label, text), in order."""

    rows: tuple[tuple[str, str], ...]
    share: float | None
    """Part of the run that is done; None: unknown."""


def progress_model(
    fetcher: FetcherStatus | None,
    trainer: TrainerStatus | None,
    restarts: Mapping[str, int],
    elapsed_s: float,
    *,
    stopping: bool = False,
    ended: Collection[str] = (),
) -> ProgressModel:
    """Return the content of the display. None for a service that has not reported since its start, or has ``ended``."""
    share, eta_s = run_words.done_share(fetcher, trainer), run_words.remaining_s(fetcher, trainer)
    done = run_words.done_words(share, trainer.counters.events_read) if trainer and share is not None else ""
    eta = "unknown" if eta_s is None else duration(eta_s)
    is_ending = stopping or (trainer is not None and trainer.state in ("finished", "stopped"))
    absent = {name: "ended" if stopping or name in ended else "starting" for name in (FETCHER, TRAINER)}
    of_fetcher = _fetcher_rows(fetcher, trainer, stopping=stopping) if fetcher else [("fetcher", absent[FETCHER])]
    rows = (
        *([("done", done)] if done else []),
        ("time", duration(elapsed_s) + ("" if is_ending else f", ETA {eta}")),
        *(_trainer_rows(trainer, share) if trainer is not None else [("trainer", absent[TRAINER])]),
        *of_fetcher,
        ("restarts", run_words.restart_words(restarts) or "none"),
    )
    return ProgressModel(rows, share)


def _trainer_rows(trainer: TrainerStatus, share: float | None) -> list[tuple[str, str]]:
    last = run_words.expected_steps(trainer, share) if trainer.state == "training" else None
    step = f"{trainer.step:,} of about {last:,}" if last and not trainer.max_steps else run_words.step_words(trainer)
    copied = f"{run_words.binary_words(trainer.copied_bytes_per_s)}/s of data" if trainer.copied_bytes_per_s else ""
    rows = [
        ("trainer", f"{trainer.state} on {trainer.device}" if trainer.device else trainer.state),
        ("step", step),
        (
            "trained",
            f"{trainer.events_per_s:,.0f} events/s, {trainer.particles_per_s:,.0f} particles/s,"
            f" waits for data {100 * trainer.wait_fraction:.0f} %",
        ),
        ("copied", copied),
        ("GPU", run_words.gpu_words(trainer.gpu)),
        ("losses", run_words.loss_words(trainer.losses) or "none yet"),
        ("health", run_words.health_words(trainer)),
    ]
    return [(label, text) for label, text in rows if text]


def _fetcher_rows(fetcher: FetcherStatus, trainer: TrainerStatus | None, *, stopping: bool) -> list[tuple[str, str]]:
    wanted = f" of {fetcher.decoders_wanted} wanted" if fetcher.decoders_wanted else ""
    lost = f", {fetcher.decoders_lost} lost" if fetcher.decoders_lost else ""
    rows = [("files", run_words.files_words(fetcher, trainer))]
    if fetcher.listing and not fetcher.ranges_listed:
        rows.append(("listing", fetcher.listed or "waiting for the first answer"))
    if fetcher.received_bytes:
        speed = f"{fetcher.received_bytes_per_s / 2**20:,.1f} MiB/s, {fetcher.transfers} at a time"
        rows.append(("received", f"{speed}, {fetcher.received_bytes / 2**30:,.2f} GiB so far"))
    if fetcher.problem:
        rows.append(("problem", fetcher.problem))
    decoders = f"{run_words.counted(fetcher.decoders, 'decoder')}{wanted}{lost}"
    return [
        *rows,
        ("decoded", f"{fetcher.events_decoded_per_s:,.0f} events/s, {decoders}"),
        ("slots", f"{fetcher.slots_free} free, {fetcher.units_ready} ready of {fetcher.slots}"),
        ("bottleneck", "none, the run is ending" if stopping else run_words.bottleneck(fetcher, trainer)),
    ]


class Display:
    """Progress display of one session: a live view on a terminal, otherwise a line at intervals."""

    def __init__(self, run_dir: Path, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._console = console
        self._clock = clock
        self._began_s = clock()
        self._next_line_s = self._began_s + FIRST_LINE_S
        self._warned: set[str] = set()
        self._said: deque[str] = deque(maxlen=_MOST_SAID)
        self._width = console.width
        self._live = self._new_live() if console.is_interactive else None

    def _new_live(self) -> Live:
        """Return a live view without a refresh thread: the supervisor forks, and requests each refresh itself."""
        return Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Display:
        if self._live is not None:
            self._guard(self._live.start)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._guard(self._live.stop)

    def say(self, text: str) -> None:
        """Print a permanent line above the live view."""
        self._said.append(text)
        self._guard(lambda: self._console.print(Text(text), soft_wrap=True))

    def watch(self, processes: Processes) -> None:
        """Show the newest status; to be called often."""
        now_s = self._clock()
        names = [name for name in processes.pids if service_of(name) == FETCHER]
        found = [live_status(self._run_dir, name, FetcherStatus, processes) for name in names]
        fetcher = fetchers_together([status for status in found if status is not None])
        trainer = live_status(self._run_dir, TRAINER, TrainerStatus, processes)
        for warning in trainer.warnings if trainer is not None else ():
            if warning not in self._warned:
                self._warned.add(warning)
                self.say(f"Warning: {warning}")
        if self._live is None and now_s < self._next_line_s:
            return
        elapsed_s, stopping = now_s - self._began_s, processes.stopping
        if self._live is None:
            self._next_line_s = now_s + min(max(elapsed_s, FIRST_LINE_S), PLAIN_LINE_S)
            self.say(run_words.progress_line(fetcher, trainer, processes.restarts, elapsed_s, stopping=stopping))
        else:
            ended = {FETCHER, TRAINER} - {FETCHER if service_of(name) == FETCHER else name for name in processes.pids}
            model = progress_model(fetcher, trainer, processes.restarts, elapsed_s, stopping=stopping, ended=ended)
            # Narrower than the terminal: an echoed ^C at the last row's end would wrap, and leave its border behind.
            view = Constrain(panel("icestream", model.rows, model.share), max(20, self._console.width - _ECHO_COLUMNS))
            if self._console.width != self._width:
                self._guard(self._clear)
            if (live := self._live) is not None:
                self._guard(lambda: live.update(view, refresh=True))

    def _clear(self) -> None:
        """Begin again on an empty screen: a terminal of another width wraps the old view, of unknown height then."""
        self._width = self._console.width
        if self._live is not None:
            self._live.stop()
            self._console.clear()
            for text in self._said:
                self._console.print(Text(text), soft_wrap=True)
            self._live = self._new_live()
            self._live.start()

    def _guard(self, show: Callable[[], object]) -> None:
        """Disable the display when its output is lost (closed terminal, closed pipe): the run continues."""
        try:
            show()
        except OSError:
            self._live = None
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._console.file.fileno())
                os.close(nowhere)


def live_status(run_dir: Path, name: str, kind: type[StatusType], processes: Processes) -> StatusType | None:
    """Return the newest status of the running process; the status left by a former process is not shown."""
    status = read_status(shard_dir(run_dir, shard_of(name)), service_of(name), kind)
    return status if status is not None and getattr(status, "pid", 0) == processes.pids.get(name) else None


def panel(
    title: str, rows: Iterable[tuple[str, str]], share: float | None, styles: Mapping[str, str] = _STYLES
) -> RenderableType:
    """Return the rows of a live view; the one with the label "done" begins with a bar of ``share`` (0 to 1)."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan", justify="right")
    table.add_column()
    for label, text in rows:
        shown: RenderableType = Text(text, style=styles.get(label, ""))
        if label == "done" and share is not None:
            bar, shown = ProgressBar(total=1.0, completed=share, width=20), Table.grid(padding=(0, 2))
            shown.add_row(bar, text)
        table.add_row(label, shown)
    return Panel(table, title=title, title_align="left", expand=False)


class RunRecord:
    """Record of one session, replaced at each change."""

    def __init__(self, run_dir: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._newest = RunStatus(pid=os.getpid(), started_s=clock(), changed_s=clock())
        write_status(run_dir, RUN_STATUS, self._newest)

    def watch(self, processes: Processes) -> None:
        """Write the processes if they have changed; to be called often."""
        self._replace(
            state="stopping" if processes.stopping else "running",
            processes=dict(processes.pids),
            restarts=dict(processes.restarts),
        )

    def ended(self, outcome: SessionOutcome) -> None:
        """Write the end of the session."""
        self._replace(
            state=outcome.exit_status,
            processes={},
            restarts=dict(outcome.restarts),
            exit_code=outcome.exit_code,
            error=outcome.error or "",
        )

    def _replace(self, **changes: object) -> None:
        if any(getattr(self._newest, name) != value for name, value in changes.items()):
            self._newest = self._newest.model_copy(update={**changes, "changed_s": self._clock()})
            write_status(self._run_dir, RUN_STATUS, self._newest)


@contextmanager
def supervisor_log(run_dir: Path) -> Iterator[logging.Logger]:
    """Append all records of this package to the log meanwhile; yields the package's logger."""
    folder = run_dir / LOGS_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    handler = _PatientHandler(folder / SUPERVISOR_LOG)
    handler.setFormatter(RedactingFormatter("supervisor"))
    logger = logging.getLogger(__package__)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


class _PatientHandler(logging.FileHandler):
    """Handler that drops what a full disk doesn't take: the run continues."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()
