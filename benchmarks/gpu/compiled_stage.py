"""Step of the muon WGAN, compiled: apart from the others, since a compiler's failure must not cost their figures."""

from __future__ import annotations

from benchmarks.gpu.cells import measure_cells
from benchmarks.gpu.channel import Channel
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.variants import VARIANTS


def run(setting: Setting, channel: Channel) -> None:
    """Rows of cells.py; `first_s` contains the time of compiling."""
    measure_cells([one for one in VARIANTS if one.is_compiled], setting, channel)
