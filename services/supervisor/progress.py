"""Progress display: the newest status of a run's services as a live view or as plain lines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from common.durations import duration
from common.measurements import values
from common.metrics import WINDOW_S
from common.status import HOPS, FetcherStatus, TrainerStatus
from common.status_files import StatusType, read_status
from services.supervisor.supervisor import FETCHER, TRAINER, Processes

PLAIN_LINE_S = 5.0
"""Seconds between lines without a terminal."""

_REASONS = {
    "trainer": ("no_free_slot", "no free slot"),
    "decoders": ("no_credit", "no credit"),
    "staging": ("not_staged", "next files not staged yet"),
}
_REMEDIES = {
    "trainer": "the data waits for it; a faster --device or a larger stream.batch_events helps",
    "decoders": "add some with --decoders",
    "staging": "the network or the disk is slow; more fetcher.transfers may help",
}


_STYLES = {"bottleneck": "yellow", "problem": "bold red", "health": "bold red"}


@dataclass(frozen=True)
class HopRow:
    """Row of one hop over the last seconds; all in percent."""

    name: str
    put: float
    """Share of time that the producer waited."""
    get: float
    """Share of time that the consumer waited."""
    full: float


@dataclass(frozen=True)
class ProgressModel:
    """Content of the display: rows of (label, text), in order."""

    rows: tuple[tuple[str, str], ...]
    fraction: float | None
    """Part of the run that is done; None: unknown."""
    hops: tuple[HopRow, ...] = ()

    def plain_line(self) -> str:
        """All rows in one line."""
        hops = ", ".join(f"{hop.name} {hop.put:.0f}/{hop.get:.0f}/{hop.full:.0f}" for hop in self.hops)
        rows = [*self.rows, ("hops (put waits/get waits/full, %)", hops)] if hops else self.rows
        return " | ".join(f"{label} {text}" for label, text in rows)


def progress_model(
    fetcher: FetcherStatus | None,
    trainer: TrainerStatus | None,
    restarts: Mapping[str, int],
    elapsed_s: float,
) -> ProgressModel:
    """Content of the display. None for a service: it has not reported since its last start."""
    eta_s = remaining_s(fetcher, trainer)
    done = None
    if trainer is not None and eta_s is not None:
        spent_s = max(trainer.seconds, 1e-9)
        done = spent_s / (spent_s + eta_s)
    eta = "unknown" if eta_s is None else duration(eta_s)
    restarted = ", ".join(f"{service} {count}" for service, count in restarts.items() if count)
    rows = (
        ("time", f"{duration(elapsed_s)}, ETA {eta}"),
        *_trainer_rows(trainer),
        *_fetcher_rows(fetcher),
        ("restarts", restarted or "none"),
    )
    return ProgressModel(rows, done, hop_rows(values(fetcher, trainer)))


def hop_rows(told: Mapping[str, float]) -> tuple[HopRow, ...]:
    """Hops with complete measurements and flowing data, from common.measurements.values()."""
    shares = ("wait_put_share", "wait_get_share", "occupancy")
    return tuple(
        HopRow(hop, *(100 * told[f"hop/{hop}/{share}"] for share in shares))
        for hop in HOPS
        if all(f"hop/{hop}/{share}" in told for share in shares)
    )


def remaining_s(fetcher: FetcherStatus | None, trainer: TrainerStatus | None) -> float | None:
    """Seconds to the end of the run at the present speed: to max_steps or to the last epoch's end,
    whichever is sooner. None if both are unknown."""
    if trainer is None or trainer.state != "training" or trainer.events_per_s <= 0:
        return None
    counters = trainer.counters
    if counters.events_trained <= 0:
        return None
    candidates = []
    if trainer.max_steps and trainer.step:
        steps_per_s = trainer.events_per_s * trainer.step / counters.events_trained
        candidates.append((trainer.max_steps - trainer.step) / steps_per_s)
    all_listed = fetcher is not None and fetcher.ranges_listed >= fetcher.ranges
    if trainer.epochs and fetcher is not None and fetcher.files_planned and all_listed:
        events_total = fetcher.events_planned / fetcher.files_planned * fetcher.files_total
        read_per_s = trainer.events_per_s * counters.events_read / counters.events_trained
        candidates.append((events_total - counters.events_read) / read_per_s)
    return max(0.0, min(candidates)) if candidates else None


def bottleneck(fetcher: FetcherStatus) -> str:
    """Stage that the others wait for, the reason, and the remedy."""
    if fetcher.state == "listing":
        return "none yet, the inputs are being listed"
    if fetcher.state == "waiting for a trainer":
        return "none yet, the trainer is starting"
    if fetcher.decoders == 0 and fetcher.state == "streaming":
        return "decoders (none is connected)"
    if fetcher.bottleneck == "none":
        return "none"
    reason, words = _REASONS[fetcher.bottleneck]
    share = 100 * fetcher.stall_shares.get(reason, 0.0)
    why = f"{words} {share:.0f} % of the last {WINDOW_S:.0f} s"
    remedy = _REMEDIES[fetcher.bottleneck]
    if fetcher.bottleneck == "decoders" and fetcher.decoders_wanted:
        remedy = "more are added as cores and local.max_decoders allow"
    return f"{fetcher.bottleneck} ({why}) - {remedy}"


def _trainer_rows(trainer: TrainerStatus | None) -> list[tuple[str, str]]:
    if trainer is None:
        return [("trainer", "not up yet")]
    of_steps = f"/{trainer.max_steps:,}" if trainer.max_steps else ""
    of_epochs = f"/{trainer.epochs}" if trainer.epochs else ""
    return [
        ("trainer", f"{trainer.state} on {trainer.device}" if trainer.device else trainer.state),
        ("step", f"{trainer.step:,}{of_steps}, epoch {trainer.epoch + 1}{of_epochs}"),
        (
            "trained",
            f"{trainer.events_per_s:,.0f} events/s, {trainer.particles_per_s:,.0f} particles/s,"
            f" waits for data {100 * trainer.wait_fraction:.0f} %",
        ),
        ("losses", "  ".join(f"{name} {value:.4g}" for name, value in trainer.losses.items()) or "none yet"),
        *_health_rows(trainer),
    ]


def _health_rows(trainer: TrainerStatus) -> list[tuple[str, str]]:
    if trainer.health == "healthy" and not trainer.rollbacks:
        return []
    told = trainer.health if trainer.health == "healthy" else f"{trainer.health}: {trainer.health_reason}"
    if trainer.rollbacks:
        told += f"; went back to a good checkpoint {trainer.rollbacks} time(s) (see health.jsonl)"
    return [("health", told)]


def _fetcher_rows(fetcher: FetcherStatus | None) -> list[tuple[str, str]]:
    if fetcher is None:
        return [("fetcher", "not up yet")]
    bad = f", {fetcher.files_bad} bad" if fetcher.files_bad else ""
    wanted = f" of {fetcher.decoders_wanted} wanted" if fetcher.decoders_wanted else ""
    lost = f", {fetcher.decoders_lost} lost" if fetcher.decoders_lost else ""
    ranges = f", range {fetcher.ranges_listed} of {fetcher.ranges} listed" if fetcher.ranges > 1 else ""
    planned = f"{fetcher.files_planned:,}/{fetcher.files_total:,} planned"
    if fetcher.files_planned > fetcher.files_total:  # a run of steps, not of epochs: the total is that of one
        planned = f"{fetcher.files_planned:,} planned, {fetcher.files_total:,} an epoch"
    rows = [("files", f"{planned}{bad}{ranges}")]
    if fetcher.listing and not fetcher.ranges_listed:
        rows.append(("listing", fetcher.listed or "waiting for the first answer"))
    if fetcher.received_bytes:
        speed = f"{fetcher.received_bytes_per_s / 2**20:,.1f} MiB/s, {fetcher.transfers} at a time"
        rows.append(("received", f"{speed}, {fetcher.received_bytes / 2**30:,.2f} GiB so far"))
    if fetcher.problem:
        rows.append(("problem", fetcher.problem))
    return [
        *rows,
        ("decoded", f"{fetcher.events_decoded_per_s:,.0f} events/s, {fetcher.decoders} decoders{wanted}{lost}"),
        ("slots", f"{fetcher.slots_free} free, {fetcher.units_ready} ready of {fetcher.slots}"),
        ("bottleneck", bottleneck(fetcher)),
    ]


class Display:
    """Progress display of one session: a live view on a terminal, otherwise a line at intervals."""

    def __init__(
        self,
        run_dir: Path,
        console: Console,
        *,
        clock: Callable[[], float] = time.monotonic,
        plain_line_s: float = PLAIN_LINE_S,
    ) -> None:
        self._run_dir = run_dir
        self._console = console
        self._clock = clock
        self._plain_line_s = plain_line_s
        self._began_s = clock()
        self._next_line_s = self._began_s + plain_line_s
        self._live: Live | None = None
        if console.is_interactive:
            # No refresh thread: the supervisor forks, and requests each refresh itself.
            self._live = Live(
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> Display:
        if self._live is not None:
            self._guard(self._live.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._guard(self._live.stop)

    def say(self, text: str) -> None:
        """Print a permanent line above the live view."""
        self._guard(lambda: self._console.print(Text(text), soft_wrap=True))

    def watch(self, processes: Processes) -> None:
        """Show the newest status; to be called often."""
        now_s = self._clock()
        fetcher = live_status(self._run_dir, FETCHER, FetcherStatus, processes)
        if self._live is None and now_s < self._next_line_s:
            return
        trainer = live_status(self._run_dir, TRAINER, TrainerStatus, processes)
        model = progress_model(fetcher, trainer, processes.restarts, now_s - self._began_s)
        if self._live is None:
            self._next_line_s = now_s + self._plain_line_s
            self.say(model.plain_line())
        else:
            view = render(model)
            live = self._live
            self._guard(lambda: live.update(view, refresh=True))

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
    """Newest status of the running process; the status left by a former process is not shown."""
    status = read_status(run_dir, name, kind)
    if status is None or getattr(status, "pid", 0) != processes.pids.get(name):
        return None
    return status


def render(model: ProgressModel) -> RenderableType:
    """Rendered live view."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan", justify="right")
    table.add_column()
    if model.fraction is not None:
        table.add_row("done", ProgressBar(total=1.0, completed=model.fraction, width=50))
    for label, text in model.rows:
        table.add_row(label, Text(text, style=_STYLES.get(label, "")))
    if model.hops:
        table.add_row("hops", _hop_table(model.hops))
    return Panel(table, title="icestream", title_align="left", expand=False)


def _hop_table(hops: Sequence[HopRow]) -> RenderableType:
    table = Table.grid(padding=(0, 3))
    table.add_column()
    for _ in range(3):
        table.add_column(justify="right")
    table.add_row(f"last {WINDOW_S:.0f} s", "put waits", "get waits", "full", style="dim")
    for hop in hops:
        table.add_row(hop.name, f"{hop.put:.0f} %", f"{hop.get:.0f} %", f"{hop.full:.0f} %")
    return table
