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

    model: Literal["wgan", "flow", "present", "count head"]
    """Kind of model. ``present`` is present_recipe.py; ``count head`` is the WGAN's, trained alone."""

    seed: int = 0
    steps: int = 2000
    batch_events: int = 256
    source: Source = Source()

    settings: dict[str, Any] = field(default_factory=dict)
    """Settings in the model's branch of the configuration that differ from the defaults."""

    changes: tuple[str, ...] = ()
    """Changes of the step that no setting offers, by name in models.py."""

    start_from: str = ""
    """Run from whose weights this one starts."""

    judged_by: Source | None = None
    """Source of the events of the evaluation; None: ``source``."""

    events: int = 40_000
    """Number of events of the evaluation."""

    c2st: bool = True
    """True to run the two-sample tests, which take most of the time of an evaluation."""


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

    @property
    def runs(self) -> tuple[Run, ...]:
        """Runs of all rows; some may be in other tables too."""
        return tuple(run for row in self.rows for run in row.runs)
