"""What a run, a row and a table are. Imports no torch: the parent of the runs stays light."""

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
"""What a result holds histograms of, and from where to where, in BINS bins."""
BINS = 50


@dataclass(frozen=True)
class Source:
    """Where events come from."""

    preset: str = "bench"
    """Of the simulator; ``corsika-file``: the showers in tests/data/corsika."""

    changes: tuple[tuple[str, Any], ...] = ()
    """Fields of SimulatorConfig that differ from the preset."""

    rows: Literal["independent", "showers in order", "showers shuffled"] = "independent"
    """A shower for each row, or the rows of a shower at ten depths: neighbours, or shuffled among 51,200."""

    empties: bool = True
    """With rows that have no muons. Muonitron leaves them out."""

    @property
    def config(self) -> SimulatorConfig:
        """Raises BadInputError."""
        return preset(self.preset, **dict(self.changes))


@dataclass(frozen=True)
class Run:
    """One training and its evaluation."""

    name: str
    """Unique, and a file name."""

    model: Literal["wgan", "flow", "present", "count head"]
    """``present`` is present_recipe.py; ``count head`` is the WGAN's, trained alone."""

    seed: int = 0
    steps: int = 2000
    batch_events: int = 256
    source: Source = Source()

    settings: dict[str, Any] = field(default_factory=dict)
    """Of the model's branch of the configuration, where they differ from the defaults."""

    changes: tuple[str, ...] = ()
    """Of the step, by name in models.py: what no setting of the product can do."""

    start_from: str = ""
    """The run whose weights this one begins with."""

    judged_by: Source | None = None
    """Where the events of the evaluation come from; None: from ``source``."""

    events: int = 40_000
    """Of the evaluation."""

    c2st: bool = True
    """With the two-sample tests, which take most of the time of an evaluation."""


@dataclass(frozen=True)
class Row:
    """A line of a table: the median of its runs."""

    label: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Table:
    """A question and the rows that answer it."""

    key: str
    title: str
    question: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """Of all rows; some may stand in other tables too."""
        return tuple(run for row in self.rows for run in row.runs)
