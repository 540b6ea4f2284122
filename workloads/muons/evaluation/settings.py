"""Options of an evaluation. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from common.errors import BadInputError

NATURAL_FLUX = "h3a"
_MIN_EVENTS = 100


@dataclass(frozen=True)
class EvaluationRequest:
    """Validated options of an evaluation. Raises BadInputError."""

    checkpoint: Path
    inputs: tuple[str, ...]
    simulated: str = ""
    """Preset with which the files were simulated: real events can be drawn again."""
    simulate: str = ""
    """Preset from which to draw the events, without files."""
    events: int = 40_000
    """Largest number of events; 0: all."""
    seed: int = 0
    weights: str = ""
    """Parquet column, or NATURAL_FLUX."""
    output: Path | None = None
    thresholds: Path | None = None
    device: str = "auto"
    threads: int = 1
    """CPU threads of torch."""
    c2st_epochs: int = 12
    bootstraps: int = 100

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise BadInputError(f"--device {self.device}: use auto, cpu, cuda or cuda:N")
        if bool(self.inputs) == bool(self.simulate):
            raise BadInputError(
                "name the events to compare with: files with -i, or --simulate PRESET to draw them"
                if not self.inputs
                else "either files with -i, or --simulate PRESET, not both (--simulated says what files hold)"
            )
        if self.simulate and self.simulated:
            raise BadInputError("--simulated is about files; --simulate alone draws the events anew")
        if self.events and self.events < _MIN_EVENTS:
            raise BadInputError(
                f"--events {self.events}: at least {_MIN_EVENTS} are needed to say anything; 0 takes all"
            )
        if self.simulate and not self.events:
            raise BadInputError("--events 0 takes all events of files; with --simulate say how many")
        if self.weights == NATURAL_FLUX and not self.preset:
            raise BadInputError(
                f"--weights {NATURAL_FLUX} needs the spectrum that the events were made with: --simulated PRESET;"
                " for other files name a column with the weights"
            )
        if self.simulate and self.weights not in ("", NATURAL_FLUX):
            raise BadInputError(f"--weights {self.weights}: simulated events have no columns; {NATURAL_FLUX} is known")

    @property
    def preset(self) -> str:
        """Preset of the simulator for the real events; empty if they are not simulated."""
        return self.simulate or self.simulated
