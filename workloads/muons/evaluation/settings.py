"""Options of an evaluation. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.errors import BadInputError
from workloads.base.evaluation.options import EvaluationOptions

NATURAL_FLUX = "h3a"


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest(EvaluationOptions):
    """Validated options of an evaluation. Raises BadInputError."""

    simulated: str | None = None
    """Preset with which the files were simulated: real events can be drawn again."""
    simulate: str | None = None
    """Preset from which to draw the events, without files."""
    weights: str | None = None
    """Parquet column, or NATURAL_FLUX."""
    c2st_epochs: int = 12
    beside: Path | None = None
    """Second trained run, evaluated on the same events."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.inputs) == bool(self.simulate):
            raise BadInputError(
                "name the events to compare with: files with -i, or --simulate PRESET to draw them"
                if not self.inputs
                else "either files with -i, or --simulate PRESET, not both (--simulated says what files hold)"
            )
        if self.simulate and self.simulated:
            raise BadInputError("--simulated is about files; --simulate alone draws the events again")
        if self.simulate and not self.events:
            raise BadInputError("--events 0 takes all events of files; with --simulate say how many")
        if self.weights == NATURAL_FLUX and not self.preset:
            raise BadInputError(
                f"--weights {NATURAL_FLUX} needs the spectrum that the events were made with: --simulated PRESET;"
                " for other files name a column with the weights"
            )
        if self.simulate and self.weights not in (None, NATURAL_FLUX):
            raise BadInputError(f"--weights {self.weights}: simulated events have no columns; {NATURAL_FLUX} is known")

    @property
    def preset(self) -> str:
        """Preset of the simulator for the real events; empty if they are not simulated."""
        return self.simulate or self.simulated or ""
