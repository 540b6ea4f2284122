"""Variants of the step that start slowly, apart from the others: a compiler's failure must not cost their figures."""

from __future__ import annotations

from benchmarks.gpu.cells import measure_cells
from benchmarks.gpu.channel import Channel
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.variants import VARIANTS


def run(setting: Setting, channel: Channel) -> None:
    """Rows of cells.py; `first_s` contains the time of compiling, less if the cache has it from another time."""
    measure_cells([one for one in VARIANTS if one.is_apart], setting, channel)
