"""Types of runs, rows and tables. Imports no torch: the parent of the runs stays light."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from workloads.muons.simulator.config import SimulatorConfig, preset

CORSIKA_FILE = "corsika-file"

HISTOGRAMS = {
    "log10_count": (0.0, 3.0),
    "log10_energy": (0.0, 5.0),
    "log10_radius": (-1.0, 2.5),
    "log10_bundle_energy": (0.0, 6.0),
}
"""Quantities with histograms in a result, and their ranges, in BINS bins."""
BINS = 50


@dataclass(frozen=True)
class Source:
    """Source of events."""

    preset: str = "bench"
    """Preset of the simulator; ``corsika-file``: the showers in tests/data/corsika."""

    changes: tuple[tuple[str, Any], ...] = ()
    """Fields of SimulatorConfig that differ from the preset."""

    rows: Literal["independent", "showers in order", "showers shuffled"] = "independent"
    """A shower for each row, or the rows of a shower at ten depths: consecutive, or shuffled among 51,200."""

    empties: bool = True
    """True to include rows without muons. Muonitron leaves them out."""

    @property
    def config(self) -> SimulatorConfig:
        """Configuration of the simulator. Raises BadInputError."""
        return preset(self.preset, **dict(self.changes))


@dataclass(frozen=True)
class Run:
    """One training and its evaluation."""

    name: str
    """Unique name, valid as a file name."""

    model: Literal["wgan", "likelihood", "count head", "simulator"]
    """Kind of model. ``count head``: that of all models, trained alone. ``simulator``: no training; the source's events
    drawn again for the same primaries, as a perfect model's: their values are the floors."""

    seed: int = 0
    steps: int = 2000
    batch_events: int = 256
    source: Source = Source()

    bf16: bool = False
    """True for weights and rows in bfloat16 while it is trained; else float32."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Settings in the model's branch of the configuration that differ from the defaults."""

    start_from: str = ""
    """Run from whose weights this one starts."""

    judged_by: Source | None = None
    """Source of the events of the evaluation; None: ``source``."""

    events: int = 20_000
    """Number of events of the evaluation."""

    generations: int = 4
    """Number of times that events are generated for the same primaries. Each metric is the mean over them."""

    tail_events: int = 0
    """Number of further events, of other primaries, for what is rare; 0: none."""

    c2st_events: int = 20_000
    """Events of the two-sample test, the first ones of the evaluation; 0: none. It takes most of the time."""

    attention: bool = False
    """True for a second two-sample test, of a network with attention."""

    tuning: bool = False
    """True for the primaries on which limits and defaults may be chosen. Nothing of it is quoted."""


@dataclass(frozen=True)
class Row:
    """Line of a table: the median of its runs."""

    label: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Table:
    """Question, and the rows that answer it."""

    key: str
    title: str
    question: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    floor: Run | None = None
    """Run of the simulator with the same events of evaluation; None: there is none."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """Runs of all rows and the floor; some may be in other tables too."""
        of_rows = tuple(run for row in self.rows for run in row.runs)
        return (*of_rows, self.floor) if self.floor else of_rows


@dataclass(frozen=True)
class Limit:
    """Value that is asked of a model."""

    must: float
    should: float | None = None
    kind: Literal["at most", "at least", "around one"] = "at most"
    """``around one``: the limit is on the distance from 1."""

    should_floors: float = 0.0
    """``should`` as a multiple of the floor, but no more than ``must``; 0: it is ``should``."""

    def wanted(self, floor: float) -> float | None:
        """Value of ``should`` with this floor; None if nothing more than ``must`` is asked."""
        return min(self.should_floors * floor, self.must) if self.should_floors else self.should

    def met(self, value: float, limit: float) -> bool:
        """True if a value keeps a limit of this kind; false for NaN."""
        if self.kind == "at least":
            return value >= limit
        return abs(value - 1.0) <= limit if self.kind == "around one" else value <= limit
