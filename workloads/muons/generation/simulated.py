"""Primaries from a preset of the simulator, without a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from workloads.base.random_streams import numpy_stream
from workloads.muons.generation.primaries import Primaries
from workloads.muons.purposes import MuonPurpose
from workloads.muons.simulator.config import DepthKind, preset
from workloads.muons.simulator.flux import sample_primaries

_ROWS = 65_536


def simulated_primaries(preset_name: str, num_events: int, depth_kind: DepthKind, seed: int) -> Iterator[Primaries]:
    """Independent primaries of the preset's spectrum, with the ids (0, number).

    Same seed, same primaries: a shorter sequence is the beginning of a longer one.
    """
    config = replace(preset(preset_name), depth_kind=depth_kind)
    for block, first in enumerate(range(0, num_events, _ROWS)):
        rng = numpy_stream(MuonPurpose.GENERATED_PRIMARIES, seed, block)
        rows = min(_ROWS, num_events - first)
        minor_E = np.arange(first, first + rows, dtype=np.uint64)
        ids_E2 = np.stack([np.zeros_like(minor_E), minor_E], 1)
        yield Primaries(ids_E2, sample_primaries(_ROWS, config, rng).columns(config)[:rows])
