"""Fast forward pass of the generator: no autograd, no temporaries, rows that stay in the cache.

The results equal those of `Generator` and `Standardise.muons` to rounding: ``test_wgan_inference.py``. Random numbers
are drawn piece by piece, in the order of events: those of an event depend on the events before it and on the sizes of
a piece only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.native.dense import dense, library_for
from workloads.base.native.particles import chain_into
from workloads.base.parts import PartPool
from workloads.muons.models.standardise import POSITION_SCALE_M, Standardise
from workloads.muons.models.wgan.layers import LEAK, Dense
from workloads.muons.models.wgan.model import Generator, size_E1


@dataclass(frozen=True)
class PieceSizes:
    """Sizes of the pieces in one pass through the networks."""

    events: int
    particles: int
    """Rows that torch computes at once; the library in C++ has blocks of its own."""
    counts: int
    """Events in one draw of numbers of muons."""


CPU_PIECES = PieceSizes(events=1024, particles=1024, counts=2048)
"""Sizes on a CPU: 1,024 particles 128 wide take half a MiB a layer, so that all layers fit a core's L2 cache."""
GPU_PIECES = PieceSizes(events=65_536, particles=262_144, counts=262_144)
"""Sizes on a GPU, which is limited by launches, not by caches."""

_LN_10 = math.log(10.0)


class Inference:
    """Muons of events with given counts, in memory that depends on the size of a piece, apart from the result.

    ``max_deviation``: see SamplingConfig.
    """

    def __init__(self, generator: Generator, standardise: Standardise, max_deviation: float) -> None:
        self._generator = generator
        self._standardise = standardise
        self._max_deviation = max_deviation
        self._buffers: dict[str, Tensor] = {}
        self._threads = torch.get_num_threads()
        self._pool = PartPool(self._threads)

    def draw(self, primary_E4: Tensor, counts_E: Tensor, random: torch.Generator) -> Tensor:
        """Muons. (E, 4), (E,) of any length -> (P, 3) = [energy_gev, x_m, y_m]."""
        pieces = GPU_PIECES if counts_E.is_cuda else CPU_PIECES
        counts = counts_E.cpu().numpy()
        present = np.flatnonzero(counts)  # empty events are skipped
        if len(present) < len(counts):
            rows = torch.from_numpy(present).to(counts_E.device)
            primary_E4, counts_E, counts = primary_E4[rows], counts_E[rows], counts[present]
        ends = np.concatenate([[0], np.cumsum(counts)])
        muons_P3 = torch.empty((int(ends[-1]), 3), device=counts_E.device)  # no reused buffer: the caller may change it
        with torch.inference_mode():
            layers = _Layers.of(self._generator, self._standardise)
            known_EC = torch.cat([self._standardise.conditions(primary_E4), size_E1(counts_E, primary_E4.dtype)], 1)
            numbers_E = torch.arange(min(pieces.events, len(counts)), device=counts_E.device)
            for first in range(0, len(counts), pieces.events):
                last = min(first + pieces.events, len(counts))
                begin, end = int(ends[first]), int(ends[last])
                event_P = torch.repeat_interleave(
                    numbers_E[: last - first], counts_E[first:last], output_size=end - begin
                )
                of_event_ED = self._events(layers, known_EC[first:last], random)
                features_FP = self._buffer("features", (layers.last_FD.shape[0], end - begin), muons_P3)
                self._particles(layers, of_event_ED, event_P, features_FP, random, pieces.particles)
                self._to_muons(layers, features_FP, muons_P3[begin:end], random)
        return muons_P3

    def _events(self, layers: _Layers, known_EC: Tensor, random: torch.Generator) -> Tensor:
        """Contribution of each event to the first layer of its muons, with the bias. (E, C) with the size -> (E, D)."""
        num = len(known_EC)
        z_EZ = self._buffer("noise", (num, self._generator.z_global), known_EC).normal_(generator=random)
        row_ED = torch.cat([z_EZ, known_EC], 1)
        library = library_for(row_ED, layers.context_DD.t())
        for weight_AD, bias_D, norm in layers.event:
            if library:
                row_ED = dense(library, row_ED, weight_AD.t(), bias_D, norm, LEAK)[0]
                continue
            linear_ED = self._buffer("event", (num, len(bias_D)), known_EC)
            torch.addmm(bias_D, row_ED, weight_AD, out=linear_ED)
            row_ED = F.layer_norm(linear_ED, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
            F.leaky_relu_(row_ED, LEAK)
        of_event_ED = self._buffer("event", (num, len(layers.first_bias_D)), known_EC)
        return torch.addmm(layers.first_bias_D, row_ED, layers.context_DD, out=of_event_ED)

    def _particles(
        self,
        layers: _Layers,
        of_event_ED: Tensor,
        event_P: Tensor,
        into_FP: Tensor,
        random: torch.Generator,
        at_once: int,
    ) -> None:
        """Features of the particles of a piece; without the library in C++, of so many at once."""
        z_PZ = self._buffer("noise", (len(event_P), self._generator.z_local), into_FP).normal_(generator=random)
        z_PZ = self._generator.local_inputs(z_PZ)
        if library := library_for(z_PZ, layers.context_DD.t()):

            def compute(rows: slice) -> None:
                chain_into(library, into_FP[:, rows], z_PZ[rows], of_event_ED, event_P[rows], layers.chain, LEAK)

            at_once = -(-len(event_P) // self._threads)  # the same result however they are divided
            list(self._pool.map(compute, (slice(at, at + at_once) for at in range(0, len(event_P), at_once))))
            return
        for first in range(0, len(event_P), at_once):
            piece = slice(first, first + at_once)
            self._by_torch(layers, z_PZ[piece], of_event_ED, event_P[piece], into_FP[:, piece])

    def _by_torch(self, layers: _Layers, z_PZ: Tensor, of_event_ED: Tensor, event_P: Tensor, into_FP: Tensor) -> None:
        """Compute the features. Each layer is computed in place, or into one of two alternating buffers."""
        num, width = len(event_P), of_event_ED.shape[1]
        first_PD = self._buffer("first", (num, width), into_FP)
        torch.index_select(of_event_ED, 0, event_P, out=first_PD)
        F.leaky_relu_(first_PD.addmm_(z_PZ, layers.noise_ZD), LEAK)
        second_PD = self._buffer("second", (num, width), into_FP)
        torch.addmm(layers.hidden_bias_D, first_PD, layers.hidden_DD, out=second_PD)
        F.leaky_relu_(second_PD, LEAK)
        # (F, P) instead of (P, F): four times as fast for so few columns, and each feature is a row.
        torch.mm(layers.last_FD, second_PD.t(), out=into_FP)

    def _to_muons(self, layers: _Layers, features_FP: Tensor, into_P3: Tensor, random: torch.Generator) -> None:
        """Write muons as of `Standardise.muons` into the columns of the result. Overwrites the features."""
        of = self._standardise
        most_F1 = self._max_deviation * layers.scale_F1
        features_FP.add_(layers.last_bias_F1).clamp_(-most_F1, most_F1).add_(layers.mean_F1)
        if not of.symmetric:
            into_P3[:, 0] = features_FP[0].exp_()
            into_P3[:, 1:] = features_FP[1:].sinh_().mul_(POSITION_SCALE_M).t()
            return
        energy_P, radius_P = features_FP.exp_()
        radius_P.sub_(of.radius_offset_m).clamp_min_(0)
        azimuth_P = self._buffer("azimuth", radius_P.shape, into_P3).uniform_(0, 2 * math.pi, generator=random)
        into_P3[:, 0] = energy_P
        torch.mul(radius_P, torch.cos(azimuth_P, out=energy_P), out=into_P3[:, 1])
        torch.mul(radius_P, azimuth_P.sin_(), out=into_P3[:, 2])

    def _buffer(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Uninitialised buffer that is reused between pieces."""
        num = math.prod(shape)
        kept = self._buffers.get(name)
        if kept is None or kept.numel() < num:
            kept = self._buffers[name] = torch.empty(num, device=like.device, dtype=like.dtype)
        return kept[:num].view(shape)


@dataclass(frozen=True)
class _Layers:
    """Weights of the layers, without modules: calling a module costs as much in Python as a small layer.

    The last layer gives ln 10 × the logarithmic feature, or the argument of sinh, minus its mean: 10^x is then e^x,
    ten times as fast, and needs no pass to scale it.
    """

    event: tuple[tuple[Tensor, Tensor, nn.LayerNorm], ...]
    """Layers of the event network: weight, bias, normalisation."""
    context_DD: Tensor
    first_bias_D: Tensor
    noise_ZD: Tensor
    hidden_DD: Tensor
    hidden_bias_D: Tensor
    last_FD: Tensor
    chain: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    """Weights of the last three layers for the library in C++, without the last bias."""
    last_bias_F1: Tensor
    scale_F1: Tensor
    """Scale of one standard deviation."""
    mean_F1: Tensor

    @classmethod
    def of(cls, generator: Generator, standardise: Standardise) -> _Layers:
        hidden, last = generator.muon_network
        assert isinstance(hidden, Dense)
        assert isinstance(last, nn.Linear)
        first = generator.muon_input.linear
        unit_F = torch.full_like(standardise.feature_mean_F, _LN_10)
        if not standardise.symmetric:
            unit_F[1:] = 1.0
        scale_F = standardise.feature_spread_F * unit_F
        noise_DZ, last_FD = first.weight[:, first.out_features :], last.weight * scale_F.unsqueeze(1)
        return cls(
            event=tuple(_weights(layer) for layer in generator.event_network),
            context_DD=first.weight[:, : first.out_features].t(),
            first_bias_D=first.bias,
            noise_ZD=noise_DZ.t(),
            hidden_DD=hidden.linear.weight.t(),
            hidden_bias_D=hidden.linear.bias,
            last_FD=last_FD,
            chain=(noise_DZ.contiguous(), hidden.linear.weight, hidden.linear.bias, last_FD, torch.zeros_like(scale_F)),
            last_bias_F1=(last.bias * scale_F).unsqueeze(1),
            scale_F1=scale_F.unsqueeze(1),
            mean_F1=(standardise.feature_mean_F * unit_F).unsqueeze(1),
        )


def _weights(layer: nn.Module) -> tuple[Tensor, Tensor, nn.LayerNorm]:
    assert isinstance(layer, Dense)
    assert layer.norm is not None
    return layer.linear.weight.t(), layer.linear.bias, layer.norm
