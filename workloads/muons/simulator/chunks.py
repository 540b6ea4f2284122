"""Chunks of bounded size of a flat array of muons, independent of their distribution over events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workloads.muons.simulator.propagation import Float32

Int64 = npt.NDArray[np.int64]

CHUNK_MUONS = 1 << 15
"""Muons processed at once; 4,096 to 262,144 are equally fast. It bounds the temporaries, because a chunk may
end inside an event: a row of a million muons needs no memory besides its own result."""


@dataclass(frozen=True)
class Chunk:
    """Muons ``start`` to ``stop`` of the flat array, and their number for each event."""

    start: int
    stop: int
    first_event: int
    counts_E: Int64

    def __len__(self) -> int:
        return self.stop - self.start

    def spread(self, values_E: Float32) -> Float32:
        """Values of the events, repeated for each of their muons in this chunk. (all events,) -> (P,)."""
        return np.repeat(values_E[self.first_event : self.first_event + len(self.counts_E)], self.counts_E)


def chunks(counts_E: Int64, max_muons: int = CHUNK_MUONS) -> Iterator[Chunk]:
    """Chunks of at most ``max_muons``, in order, that cover every muon once."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts_E)])
    total = int(offsets[-1])
    for start in range(0, total, max_muons):
        stop = min(start + max_muons, total)
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        last = int(np.searchsorted(offsets, stop, side="left"))
        yield Chunk(start, stop, first, np.diff(np.clip(offsets[first : last + 1], start, stop)))
