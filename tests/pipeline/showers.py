"""The data of the end-to-end tests, and what becomes of it in a run that nobody disturbs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from runs import Processes, Summary, same

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
