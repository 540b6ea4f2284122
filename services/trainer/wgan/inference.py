"""The generator's forward pass as it is used a million times: no autograd, no temporary, rows that stay in the cache.

The same numbers as `Generator` and `Standardise.muons` to rounding; ``tests/trainer/test_wgan_inference.py`` holds them
together. Random numbers are drawn piece by piece, each event's when it is its turn: which ones an event gets depends on
the events before it, on the sizes of a piece, and on nothing else.

Shape suffixes: E events of one piece, P particles, F features, D width, Z noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.trainer.segments import Segments
from services.trainer.wgan.layers import LEAK, Dense
from services.trainer.wgan.model import Generator
from services.trainer.wgan.standardise import POSITION_SCALE_M, Standardise


@dataclass(frozen=True)
class PieceSizes:
    """What goes through the networks at once."""

    events: int
    particles: int


CPU_PIECES = PieceSizes(events=1024, particles=2048)
"""2,048 particles 128 wide take 1 MiB a layer: two layers stay in a core's second cache."""
GPU_PIECES = PieceSizes(events=65_536, particles=262_144)
"""A GPU waits for launches, not for its caches."""

_LN_10 = math.log(10.0)


class Inference:
    """Muons of events whose numbers are given, in memory that depends on the piece, the result aside.

    ``max_deviation``: see SamplingConfig.
    """

    def __init__(self, generator: Generator, standardise: Standardise, max_deviation: float) -> None:
        self._generator = generator
        self._standardise = standardise
        self._max_deviation = max_deviation
        self._buffers: dict[str, Tensor] = {}

    def draw(self, primary_E4: Tensor, counts_E: Tensor, random: torch.Generator) -> Tensor:
        """(E, 4), (E,) of any length -> (P, 3) = [energy_gev, x_m, y_m]."""
        pieces = GPU_PIECES if counts_E.is_cuda else CPU_PIECES
        counts = counts_E.cpu().numpy()
        present = np.flatnonzero(counts)  # an empty event costs nothing
        if len(present) < len(counts):
            rows = torch.from_numpy(present).to(counts_E.device)
            primary_E4, counts_E, counts = primary_E4[rows], counts_E[rows], counts[present]
        ends = np.concatenate([[0], np.cumsum(counts)])
        muons_P3 = torch.empty((int(ends[-1]), 3), device=counts_E.device)  # outside: others may write into it
        with torch.inference_mode():
            for first in range(0, len(counts), pieces.events):
                last = min(first + pieces.events, len(counts))
                begin, end = int(ends[first]), int(ends[last])
                segments = Segments.from_counts(counts_E[first:last], end - begin)
                of_event_ED = self._events(primary_E4[first:last], segments, random)
                for at in range(begin, end, pieces.particles):
                    to = min(at + pieces.particles, end)
                    self._particles(of_event_ED, segments.event_P[at - begin : to - begin], muons_P3[at:to], random)
        return muons_P3

    def _events(self, primary_E4: Tensor, segments: Segments, random: torch.Generator) -> Tensor:
        """What each event adds to the first layer of its muons, the bias with it. -> (E, D)."""
        network = self._generator
        conditions_EC = self._standardise.conditions(primary_E4)
        z_EZ = torch.randn(segments.num_events, network.z_global, device=primary_E4.device, generator=random)
        linear, width = network.muon_input.linear, network.muon_input.linear.out_features
        return F.linear(network.context(conditions_EC, segments, z_EZ), linear.weight[:, :width], linear.bias)

    def _particles(self, of_event_ED: Tensor, event_P: Tensor, into_P3: Tensor, random: torch.Generator) -> None:
        """One piece. Each layer is computed in place, or into the buffer that the next but one will be."""
        network = self._generator
        num, width = len(event_P), of_event_ED.shape[1]
        hidden, output = network.muon_network
        assert isinstance(hidden, Dense)
        assert isinstance(output, nn.Linear)
        z_PZ = self._buffer("noise", (num, network.z_local), into_P3).normal_(generator=random)
        first_PD = torch.index_select(of_event_ED, 0, event_P, out=self._buffer("first", (num, width), into_P3))
        first_PD.addmm_(z_PZ, network.muon_input.linear.weight[:, width:].t())
        F.leaky_relu_(first_PD, LEAK)
        second_PD = self._buffer("second", (num, width), into_P3)
        torch.addmm(hidden.linear.bias, first_PD, hidden.linear.weight.t(), out=second_PD)
        F.leaky_relu_(second_PD, LEAK)
        # (F, P) in place of (P, F): four times as fast for so few columns, and each feature is a row then.
        features_FP = self._buffer("features", (output.out_features, num), into_P3)
        torch.addmm(output.bias.unsqueeze(1), output.weight, second_PD.t(), out=features_FP)
        self._to_muons(features_FP.clamp_(-self._max_deviation, self._max_deviation), into_P3, random)

    def _to_muons(self, features_FP: Tensor, into_P3: Tensor, random: torch.Generator) -> None:
        """`Standardise.muons`, into the columns of the result. Overwrites the features."""
        of = self._standardise
        features_FP.mul_(of.feature_spread_F.unsqueeze(1)).add_(of.feature_mean_F.unsqueeze(1))
        if not of.symmetric:
            into_P3[:, 0] = features_FP[0].mul_(_LN_10).exp_()
            into_P3[:, 1:] = features_FP[1:].sinh_().mul_(POSITION_SCALE_M).t()
            return
        energy_P, radius_P = features_FP.mul_(_LN_10).exp_()  # 10^x: exp is ten times as fast as pow
        radius_P.sub_(of.radius_offset_m).clamp_min_(0)
        azimuth_P = self._buffer("azimuth", radius_P.shape, into_P3).uniform_(generator=random).mul_(2 * math.pi)
        into_P3[:, 0] = energy_P
        torch.mul(radius_P, azimuth_P.cos(), out=into_P3[:, 1])
        torch.mul(radius_P, azimuth_P.sin_(), out=into_P3[:, 2])

    def _buffer(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Uninitialised memory that is kept between pieces."""
        num = math.prod(shape)
        kept = self._buffers.get(name)
        if kept is None or kept.numel() < num:
            kept = self._buffers[name] = torch.empty(num, device=like.device, dtype=like.dtype)
        return kept[:num].view(shape)
