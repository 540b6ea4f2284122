"""Step of the muon WGAN: the shipped one and the plain one, in each precision and size.

Reading: `shipped, as fed` has the batch in several microbatches, as the trainer gets it; the others in one.
"""

from __future__ import annotations

from benchmarks.gpu.cells import measure_cells
from benchmarks.gpu.channel import Channel
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.variants import VARIANTS


def run(setting: Setting, channel: Channel) -> None:
    """Rows of cells.py."""
    measure_cells([one for one in VARIANTS if not one.is_apart], setting, channel)
