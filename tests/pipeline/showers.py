"""The data of the end-to-end tests, a web server for it, and what becomes of it in a run that nobody disturbs."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from runs import Processes, Summary, finished, same

from common.plan import is_held_out

NUM_FILES = 3
EVENTS_PER_FILE = 2_000
ROW_GROUP_EVENTS = 200
EPOCHS = 2


@dataclass(frozen=True)
class Showers:
    """A small data set: 3 files of 10 row groups of 200 events."""

    folder: Path
    tables: tuple[pa.Table, ...]

    @property
    def events(self) -> int:
        return sum(table.num_rows for table in self.tables)

    @property
    def muons(self) -> int:
        return sum(len(muons) for table in self.tables for muons in table["muons"])

    @property
    def input(self) -> tuple[str, str]:
        return "-i", str(self.folder)

    def write(self, folder: Path) -> list[Path]:
        """A copy of the files."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"bundles_{index}.parquet" for index in range(len(self.tables))]
        for path, table in zip(paths, self.tables, strict=True):
            pq.write_table(table, path, row_group_size=ROW_GROUP_EVENTS)
        return paths


@dataclass(frozen=True)
class Undisturbed:
    """How a run of SMALL_STREAM over the showers, EPOCHS epochs, ends if nobody disturbs it."""

    summary: Summary
    audit: list[str]
    checkpoint: dict[str, Any]

    @property
    def steps(self) -> int:
        return int(self.summary["steps"])

    def assert_same(self, processes: Processes) -> None:
        """The run ended with this audit, these weights (to the bit) and these counts."""
        self.assert_same_stream(processes)
        assert same(processes.checkpoint()["task"], self.checkpoint["task"])

    def assert_same_stream(self, processes: Processes) -> None:
        """The run, of whatever model, ended with this audit and these counts."""
        assert processes.audit() == self.audit
        assert processes.summary().events == self.summary.events
        assert processes.summary()["steps"] == self.steps == processes.checkpoint_step()


def carry_out_once(folder: Path, what: Callable[[], object]) -> None:
    """Carry this out for a folder once, however many processes ask for it."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ended").exists():
            what()
            (folder / "ended").touch()


def undisturbed_run(folder: Path, command: Sequence[str]) -> Undisturbed:
    """Return how a run ends that nobody disturbs."""
    processes = Processes(folder / "run", folder)
    carry_out_once(folder, lambda: list(finished(folder, command)))
    return Undisturbed(processes.summary(), processes.audit(), processes.checkpoint())


@dataclass(frozen=True)
class Scene:
    """A small run of one workload: its data, its arguments, and its undisturbed outcome."""

    workload: str
    events: int
    particles: int
    """Of the events that are trained on."""
    command: list[str]
    undisturbed: Undisturbed


PULSES_FILES = 3
_EVENTS_A_PULSES_FILE = 480
_HELD_OUT, _MOST_SQUARED = 0.1, 1_000_000
PULSES_STREAM = (
    *("trainer.device=cpu", "trainer.threads=1"),
    *("stream.block_files=2", "stream.unit_events=80", "stream.batch_events=30", "stream.slots=3"),
    *("stream.max_particles=20000", "stream.slot_mib=1", f"stream.held_out={_HELD_OUT}", "stream.length_buckets=2"),
    *(f"stream.max_squared_particles={_MOST_SQUARED}", "trainer.checkpoint_every=5", "trainer.audit=true"),
    "local.restart_min_s=0",
)
"""As SMALL_STREAM for the workload direction, with what it has and muons have not: about 36 steps an epoch."""


def write_pulses(folder: Path) -> tuple[int, int]:
    """Neutrino events in files of row groups of 40; the number of events, and of pulses of those to be trained on."""
    from workloads.direction.seeds import FitsJob, write_fits  # torch
    from workloads.direction.simulator import EventsPlan, file_name, write_dataset

    plan = EventsPlan(PULSES_FILES * _EVENTS_A_PULSES_FILE, 1, 1)
    write_dataset(folder, plan, overwrite=True)
    path = folder / file_name(0)
    write_fits(FitsJob(path, path, plan.geometry))
    table = pq.read_table(path)
    path.unlink()
    for index in range(PULSES_FILES):
        part = table.slice(index * _EVENTS_A_PULSES_FILE, _EVENTS_A_PULSES_FILE)
        pq.write_table(part, folder / f"part_{index}.parquet", row_group_size=40)
    counts = pc.list_value_length(table["pulses"]).to_numpy()
    left_out = is_held_out(table["event_id"].to_numpy()[:, None], _HELD_OUT) | (counts**2 > _MOST_SQUARED)
    return table.num_rows, int(counts[~left_out].sum())


# ------------------------------------------------------------------ files from elsewhere


@dataclass
class Server:
    """A web server on the loopback interface that serves one folder, and refuses what it is told to refuse."""

    url: str
    folder: Path
    refuse: dict[str, list[int]] = field(default_factory=dict)
    """Name -> status codes of the next GET requests for it."""
    gets: Counter[str] = field(default_factory=Counter)
    """Requests answered, by path and query."""


def bytes_under(folder: Path) -> int:
    """Disk that the files of a folder take, while others come and go. Links to one file are one file."""
    sizes_bytes, before = _sizes_bytes(folder), None
    while sizes_bytes != before:  # files that were never there at the same time are not counted together
        sizes_bytes, before = _sizes_bytes(folder), sizes_bytes
    return sum(sizes_bytes.values())


def _sizes_bytes(folder: Path) -> dict[int, int]:
    sizes_bytes: dict[int, int] = {}
    for parent, _, names in os.walk(folder):  # unlike rglob it passes over folders that go meanwhile
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = Path(parent, name).stat()
                sizes_bytes[status.st_ino] = status.st_size
    return sizes_bytes


def urls(server: Server, names: list[str], query: str = "") -> list[str]:
    """The files as inputs of a command."""
    return [argument for name in names for argument in ("-i", f"{server.url}/{name}{query}")]
