"""Events of a trained generator for given primaries, in pieces of bounded memory.

E events, P muons.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from services.generation.generator import MuonGenerator
from services.physics.bundles import Bundles, Float64
from services.slow_progress import SlowProgress

_EVENTS_AT_A_TIME = 4096
_MUONS_AT_A_TIME = 1 << 18


@dataclass(frozen=True)
class Generated:
    """One event for each primary, in order."""

    bundles: Bundles
    num_capped: int
    """Events that had more muons than allowed, and were cut down to that."""


def generate(generator: MuonGenerator, primary_E4: Float64, *, max_count: int, seed: int) -> Generated:
    """An event for each primary, of at most ``max_count`` muons."""
    random = torch.Generator(generator.device).manual_seed(seed)
    counts, muons, num_capped = [], [], 0
    with SlowProgress("generating: events", len(primary_E4)) as progress:
        for primary_C4 in _pieces(primary_E4, generator.device):
            drawn_C = generator.draw_counts(primary_C4, random)
            num_capped += int((drawn_C > max_count).sum())
            counts_C = drawn_C.clamp(max=max_count)
            for first, end in _of_muons(counts_C.cpu().numpy()):
                muons.append(generator.draw_muons(primary_C4[first:end], counts_C[first:end], random).cpu().numpy())
                progress.advance(end - first)
            counts.append(counts_C.cpu().numpy())
    return Generated(Bundles.of(np.concatenate(counts), np.concatenate(muons)), num_capped)


def pit(generator: MuonGenerator, primary_E4: Float64, counts_E: np.ndarray, seed: int) -> Float64 | None:
    """P(N < n) + u·P(N = n) of the model for each real count n, u uniform: flat from 0 to 1 if the model is right.

    None if the model has no distribution.
    """
    found = []
    first = 0
    for primary_C4 in _pieces(primary_E4, generator.device):
        counts_C = torch.from_numpy(counts_E[first : first + len(primary_C4)]).to(generator.device)
        first += len(primary_C4)
        cdf = generator.count_cdf(primary_C4, counts_C)
        if cdf is None:
            return None
        found.append(torch.stack(cdf).cpu().numpy().astype(np.float64))
    below_E, up_to_E = np.concatenate(found, axis=1)
    uniform_E = np.random.default_rng([seed, 1]).random(len(below_E))
    between: Float64 = below_E + uniform_E * (up_to_E - below_E)
    return np.clip(between, 0.0, 1.0)


def _pieces(primary_E4: Float64, device: torch.device) -> list[torch.Tensor]:
    whole = torch.from_numpy(primary_E4.astype(np.float32))
    return [piece.to(device) for piece in torch.split(whole, _EVENTS_AT_A_TIME)]


def _of_muons(counts_E: np.ndarray) -> list[tuple[int, int]]:
    """Consecutive events (first, end) with no more muons than go at a time; one event with more goes alone."""
    found: list[tuple[int, int]] = []
    first = muons = 0
    for index, count in enumerate(counts_E.tolist()):
        if index > first and muons + count > _MUONS_AT_A_TIME:
            found.append((first, index))
            first, muons = index, 0
        muons += count
    if first < len(counts_E):
        found.append((first, len(counts_E)))
    return found
