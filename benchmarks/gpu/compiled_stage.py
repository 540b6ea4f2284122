"""Step of the muon WGAN, compiled: apart from the others, since a compiler's failure must not cost their figures."""

from __future__ import annotations

import torch

from benchmarks.gpu.cells import measure_cells
from benchmarks.gpu.channel import Channel
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.variants import VARIANTS
from common.errors import BadInputError
from workloads.base.compiler import require_compiler


def run(setting: Setting, channel: Channel) -> None:
    """Rows of cells.py; `first_s` contains the time of compiling, less if the cache has it from another time."""
    try:
        require_compiler(torch.device(setting.device), "trainer.wgan.compile")
    except BadInputError as error:
        channel.leave_out(f"compiled steps: {error}")
        return
    measure_cells([one for one in VARIANTS if one.is_apart], setting, channel)
