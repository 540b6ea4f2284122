"""Exported functions: a trained model as two functions of tensors, with standardisation and without randomness.

Shape suffixes: E events, P particles, F features, K mixture components, Z noise, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from workloads.base.segments import Segments
from workloads.muons.models.config import MAX_DEVIATION
from workloads.muons.models.count_head import MixtureCountHead
from workloads.muons.models.likelihood_densities import Draws, MuonSampler, known
from workloads.muons.models.standardise import Standardise


@dataclass(frozen=True)
class FunctionInput:
    """Input of an exported function: one row an event, or one a muon."""

    name: str
    rows: Literal["events", "particles"]
    kind: Literal["primary", "counts", "event", "normal", "uniform"]
    """Contents; ``normal`` and ``uniform`` are random numbers, the latter in [0, 1)."""
    width: int
    """Numbers in a row; 0: the rows are numbers, in one dimension."""
    meaning: str
    chooses: bool = False
    """True if it chooses a component of a mixture: muons jump where it crosses the bound of two components."""

    @property
    def text(self) -> str:
        """Shape, type and meaning, for the model card."""
        size = "E" if self.rows == "events" else "P"
        shape = f"({size}, {self.width})" if self.width else f"({size},)"
        return f"{shape} {'int64' if self.kind in ('counts', 'event') else 'float32'}{self.meaning}"

    @property
    def program(self) -> str:
        """Expression that makes it from `primary`, `counts`, `num_events`, `num_muons` and a generator `random`."""
        size = "num_events" if self.rows == "events" else "num_muons"
        shape = f"({size}, {self.width})" if self.width else size
        match self.kind:
            case "normal":
                return f"random.standard_normal({shape}, np.float32)"
            case "uniform":
                return f"random.random({shape}, np.float32)"
            case "event":
                return "np.repeat(np.arange(num_events), counts)"
            case _:
                return self.kind


PRIMARY = FunctionInput("primary", "events", "primary", 4, ": energy_gev, zenith_rad, mass_a, depth_m (vertical)")
COUNTS = FunctionInput("counts", "events", "counts", 0, ": number of muons of each event")
EVENT = FunctionInput(
    "event",
    "particles",
    "event",
    0,
    ": row of each muon's event, not decreasing: 0 repeated counts[0] times, and so on",
)


def _segments(counts_E: Tensor, event_P: Tensor) -> Segments:
    return Segments(event_P, counts_E, counts_E.cumsum(0) - counts_E, counts_E, torch.arange(event_P.shape[0]))


class GeneratorFunction(nn.Module):
    """Function from primaries, counts and random numbers to muons; ``forward`` takes ``inputs`` in this order."""

    def __init__(self, sampler: MuonSampler) -> None:
        super().__init__()
        self.standardise, self.count_head = sampler.standardise, sampler.count_head
        self.network, self.correction = sampler.muons, sampler.correction
        latent, features = sampler.muons.latent, sampler.muons.num_features
        # A model that learned the azimuth takes it without effect.
        unused = "" if self.standardise.symmetric else "; not used by this model"
        self.inputs = (
            PRIMARY,
            COUNTS,
            FunctionInput("z_uniform", "events", "uniform", 1, " in [0, 1): component of the event's z", chooses=True),
            FunctionInput("z_normal", "events", "normal", latent, ": normal noise of the event's z"),
            FunctionInput(
                "uniform",
                "particles",
                "uniform",
                features,
                " in [0, 1): components of each muon's numbers",
                chooses=True,
            ),
            FunctionInput("normal", "particles", "normal", features, ": normal noise of each muon's numbers"),
            FunctionInput("azimuth", "particles", "uniform", 0, f" in [0, 1): azimuth in turns, drawn flat{unused}"),
            EVENT,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(one.name for one in self.inputs)

    def forward(
        self, primary_E4: Tensor, counts_E: Tensor, z_uniform_E1: Tensor, z_normal_EZ: Tensor, uniform_PF: Tensor,
        normal_PF: Tensor, azimuth_P: Tensor, event_P: Tensor,
    ) -> Tensor:  # fmt: skip
        """Muons. -> (P, 3) = [energy_gev, x_m, y_m].

        ``azimuth_P`` in [0, 1) is the angle in turns; a model that learned it ignores it. ``event_P``:
        row of each particle's event, not decreasing.
        """
        draws = Draws(z_uniform_E1, z_normal_EZ, uniform_PF, normal_PF)
        known_EK = known(self.standardise, self.count_head, primary_E4, counts_E)
        features_PF = self.network.draw(known_EK, _segments(counts_E, event_P), draws, self.correction)
        features_PF = features_PF.clamp(-MAX_DEVIATION, MAX_DEVIATION)
        muons_P3 = self.standardise.muons(features_PF, turns_P=azimuth_P)
        if self.standardise.symmetric:
            return muons_P3
        return muons_P3 + 0 * azimuth_P.unsqueeze(1)  # keeps the same inputs for every model

    @torch.no_grad()
    def trained_muons(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Muons from the trained modules for the same inputs, each module called separately. -> (P, 3).

        Without events that have no muons, as MuonSampler draws.
        """
        primary_E4, counts_E, z_uniform_E1, z_normal_EZ, uniform_PF, normal_PF, azimuth_P, _ = inputs
        rows_G = counts_E.nonzero().squeeze(1)
        segments = Segments.from_counts(counts_E[rows_G], len(uniform_PF))
        draws = Draws(z_uniform_E1[rows_G], z_normal_EZ[rows_G], uniform_PF, normal_PF)
        known_GK = known(self.standardise, self.count_head, primary_E4[rows_G], counts_E[rows_G])
        features_PF = self.network.draw(known_GK, segments, draws, self.correction)
        features_PF = features_PF.clamp(-MAX_DEVIATION, MAX_DEVIATION)
        return self.standardise.muons(features_PF, turns_P=azimuth_P)


class CountsFunction(nn.Module):
    """Function from primaries to the distribution of the number of muons: a mixture of K negative binomials.

    To draw N: a component k with the probabilities ``weights``, then a rate from a Gamma distribution of shape
    ``shapes[k]`` and mean ``means[k]``, then N from a Poisson distribution of that rate.
    """

    def __init__(self, standardise: Standardise, count_head: MixtureCountHead) -> None:
        super().__init__()
        self.standardise = standardise
        self.count_head = count_head

    def forward(self, primary_E4: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mixture: weights, means, shapes, each (E, K). Variance of a component: mean + mean² / shape."""
        mixture = self.count_head(self.standardise.conditions(primary_E4))
        return mixture.log_weights_EK.exp(), mixture.log_means_EK.exp(), mixture.log_shapes_EK.exp()


ModelFunctions = tuple[GeneratorFunction, CountsFunction]
"""Both functions of a model."""
