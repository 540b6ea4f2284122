"""Style of the pictures in reports: colours, fonts, places."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours: distinguishable with any kind of colour vision, and in grey by their line styles.
BLACK = "#000000"
ORANGE = "#D55E00"
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
STYLE: dict[Any, Any] = {
    "font.size": 12.0,
    "axes.labelsize": 13.0,
    "axes.titlesize": 12.0,
    "legend.frameon": False,
    "legend.fontsize": 11.0,
    "xtick.direction": "in",
    "ytick.direction": "in",
    "xtick.top": True,
    "ytick.right": True,
    "axes.formatter.use_mathtext": True,
    "mathtext.default": "regular",
}
DPI = 110
_GAP_INCHES = 0.12


@dataclass(frozen=True)
class Box:
    """Rectangle of a figure, in inches. Positions are fixed: matplotlib's layout takes longer than the drawing."""

    left: float
    bottom: float
    width: float
    height: float

    def inside(self) -> Box:
        """Box without the margins for labels."""
        return Box(self.left + 0.85, self.bottom + 0.6, self.width - 1.0, self.height - 0.95)

    def cut(self, upper_part: float) -> tuple[Box, Box]:
        """Two boxes, one above the other, with a gap."""
        upper = upper_part * (self.height - _GAP_INCHES)
        lower = self.height - _GAP_INCHES - upper
        return (
            Box(self.left, self.bottom + lower + _GAP_INCHES, self.width, upper),
            Box(self.left, self.bottom, self.width, lower),
        )

    def part_of(self, whole: Figure) -> tuple[float, float, float, float]:
        """Position as fractions of the figure."""
        across, up = whole.get_size_inches()
        return self.left / across, self.bottom / up, self.width / across, self.height / up


def as_png(figure: Figure) -> bytes:
    """Figure as PNG bytes."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()
