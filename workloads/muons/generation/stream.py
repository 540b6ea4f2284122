"""Stream from primaries to bundles, in chunks: bounded memory for any number of events, and of muons in one.

E events, P muons of a piece; the muons of an event are contiguous, events in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from workloads.base.cpu_tuning import tuned_cpu
from workloads.base.random_streams import stream_seed
from workloads.muons.generation.generator import MuonGenerator
from workloads.muons.generation.primaries import Float32, Int64, Primaries, vertical
from workloads.muons.purposes import MuonPurpose

CHUNK_EVENTS = 8192
"""Rows that share a seed. Part of the guarantee "same seed, same bytes": another number gives other events."""
MAX_MUONS = 1 << 18
"""Most muons in memory at once, except for a single event that has more. Part of the same guarantee."""

Counts = Literal["sampled", "column", "constant"]


@dataclass(frozen=True)
class CountRule:
    """Source of the numbers of muons."""

    kind: Counts
    constant: int = 0
    max_count: int = 100_000
    """Limit on the muons of an event; further ones are not generated, and the event is counted as capped."""


@dataclass(frozen=True)
class GeneratedEvents:
    """Whole events, in the order of the primaries."""

    primaries: Primaries
    counts_E: Int64
    muons_P3: Float32
    """energy_gev, x_m, y_m."""
    num_capped: int


def generate(
    primaries: Iterable[Primaries], generator: MuonGenerator, rule: CountRule, depth_kind: str, seed: int
) -> Iterator[GeneratedEvents]:
    """Events, one for each primary, in order.

    An event depends on model, device, seed, rule and the rows from the first to the last of its own chunk, and not on
    the division of the rows into batches or files.
    """
    for index, chunk in enumerate(chunks(primaries)):
        random = torch.Generator(generator.device).manual_seed(stream_seed(MuonPurpose.GENERATION, seed, index))
        primary_E4 = torch.from_numpy(vertical(chunk.primary_E4, depth_kind)).to(generator.device)
        with tuned_cpu(generator.device):
            wanted_E = _counts(chunk, primary_E4, generator, rule, random)
        counts_E = wanted_E.clamp(max=rule.max_count)
        is_capped = (wanted_E > rule.max_count).cpu().numpy()
        counts = counts_E.cpu().numpy()
        for first, end in pieces(counts, MAX_MUONS):
            with tuned_cpu(generator.device):
                muons_P3 = generator.draw_muons(primary_E4[first:end], counts_E[first:end], random).cpu().numpy()
            yield GeneratedEvents(
                chunk.rows(first, end), counts[first:end], muons_P3, int(np.count_nonzero(is_capped[first:end]))
            )


def chunks(primaries: Iterable[Primaries]) -> Iterator[Primaries]:
    """Chunks of CHUNK_EVENTS of the same rows."""
    pending: list[Primaries] = []
    num_pending = 0
    for batch in primaries:
        pending.append(batch)
        num_pending += len(batch)
        if num_pending < CHUNK_EVENTS:
            continue
        rows = Primaries.joined(pending)
        whole = num_pending // CHUNK_EVENTS * CHUNK_EVENTS
        for first in range(0, whole, CHUNK_EVENTS):
            yield rows.rows(first, first + CHUNK_EVENTS)
        pending, num_pending = [rows.rows(whole, num_pending)], num_pending - whole
    if num_pending:
        yield Primaries.joined(pending)


def pieces(counts_E: Int64, max_muons: int) -> Iterator[tuple[int, int]]:
    """(first, end) of pieces of whole events with at most ``max_muons`` muons, or of a single event."""
    ends_E = np.cumsum(counts_E)
    first = 0
    while first < len(counts_E):
        before = int(ends_E[first - 1]) if first else 0
        end = max(int(np.searchsorted(ends_E, before + max_muons, side="right")), first + 1)
        yield first, end
        first = end


def _counts(
    chunk: Primaries, primary_E4: torch.Tensor, generator: MuonGenerator, rule: CountRule, random: torch.Generator
) -> torch.Tensor:
    if rule.kind == "sampled":
        return generator.draw_counts(primary_E4, random)
    if rule.kind == "constant":
        return torch.full((len(chunk),), rule.constant, device=generator.device, dtype=torch.int64)
    assert chunk.counts_E is not None, "the reader was asked for counts"
    return torch.from_numpy(chunk.counts_E).to(generator.device)
