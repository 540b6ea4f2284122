"""Events of a trained generator for given primaries, as of `icestream generate`; probabilities of its counts.

E events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from common.slow_progress import SlowProgress
from workloads.base.random_streams import numpy_stream
from workloads.muons.generation.generator import MuonGenerator
from workloads.muons.generation.primaries import Primaries
from workloads.muons.generation.stream import CountRule, generate
from workloads.muons.metrics.bundles import BundleArrays, Float64, Int64
from workloads.muons.purposes import MuonPurpose

_EVENTS_AT_A_TIME = 16_384


@dataclass(frozen=True)
class GeneratedBundles:
    """Generated events, one for each primary, in order."""

    bundles: BundleArrays
    num_capped: int
    """Events with more muons than allowed, truncated to the limit."""


def generated_events(generator: MuonGenerator, primary_E4: Float64, *, max_count: int, seed: int) -> GeneratedBundles:
    """Events of at most ``max_count`` muons, one for each primary (with vertical depth)."""
    ids_E2 = np.zeros((len(primary_E4), 2), np.uint64)
    primaries = Primaries(ids_E2, primary_E4.astype(np.float32))
    pieces = []
    with SlowProgress("generating: events", len(primary_E4)) as progress:
        for piece in generate([primaries], generator, CountRule("sampled", max_count=max_count), "vertical", seed):
            pieces.append(piece)
            progress.advance(len(piece.counts_E))
    counts_E = np.concatenate([piece.counts_E for piece in pieces])
    bundles = BundleArrays.of(counts_E, np.concatenate([piece.muons_P3 for piece in pieces]))
    return GeneratedBundles(bundles, sum(piece.num_capped for piece in pieces))


def pit(generator: MuonGenerator, primary_E4: Float64, counts_E: Int64, seed: int) -> Float64:
    """P(N < n) + u·P(N = n) of the model for each real count n, u uniform: flat from 0 to 1 if the model is right."""
    found = []
    for first in range(0, len(counts_E), _EVENTS_AT_A_TIME):
        some = slice(first, first + _EVENTS_AT_A_TIME)
        primary_C4 = torch.from_numpy(primary_E4[some].astype(np.float32)).to(generator.device)
        cdf = generator.count_cdf(primary_C4, torch.from_numpy(counts_E[some]).to(generator.device))
        found.append(torch.stack(cdf).cpu().numpy().astype(np.float64))
    below_E, up_to_E = np.concatenate(found, axis=1)
    uniform_E = numpy_stream(MuonPurpose.COUNT_PIT, seed).random(len(below_E))
    between_E: Float64 = below_E + uniform_E * (up_to_E - below_E)
    return np.clip(between_E, 0.0, 1.0)
