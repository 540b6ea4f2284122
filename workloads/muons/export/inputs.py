"""Inputs of an exported generator: their shapes and meaning, and how a program with numpy makes them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class FunctionInput:
    """Input of an exported function: one row an event, or one a muon."""

    name: str
    rows: Literal["events", "particles"]
    kind: Literal["primary", "counts", "event", "normal", "uniform"]
    """Contents; ``normal`` and ``uniform`` are random numbers, the latter in [0, 1)."""
    width: int
    """Numbers in a row; 0: the rows are numbers, in one dimension."""
    meaning: str
    chooses: bool = False
    """True if it chooses a component of a mixture: muons jump where it crosses the bound of two components."""

    @property
    def text(self) -> str:
        """Shape, type and meaning, for the model card."""
        size = "E" if self.rows == "events" else "P"
        shape = f"({size}, {self.width})" if self.width else f"({size},)"
        return f"{shape} {'int64' if self.kind in ('counts', 'event') else 'float32'}{self.meaning}"

    @property
    def program(self) -> str:
        """Expression that makes it from `primary`, `counts`, `num_events`, `num_muons` and a generator `random`."""
        size = "num_events" if self.rows == "events" else "num_muons"
        shape = f"({size}, {self.width})" if self.width else size
        match self.kind:
            case "normal":
                return f"random.standard_normal({shape}, np.float32)"
            case "uniform":
                return f"random.random({shape}, np.float32)"
            case "event":
                return "np.repeat(np.arange(num_events), counts)"
            case _:
                return self.kind


PRIMARY = FunctionInput("primary", "events", "primary", 4, ": energy_gev, zenith_rad, mass_a, depth_m (vertical)")
COUNTS = FunctionInput("counts", "events", "counts", 0, ": number of muons of each event")
EVENT = FunctionInput(
    "event",
    "particles",
    "event",
    0,
    ": row of each muon's event, not decreasing: 0 repeated counts[0] times, and so on",
)


def azimuth(*, used: bool) -> FunctionInput:
    """Input of the angle about the axis, which a model that learned x and y takes without effect."""
    unused = "" if used else "; not used by this model"
    return FunctionInput("azimuth", "particles", "uniform", 0, f" in [0, 1): azimuth in turns, drawn flat{unused}")
