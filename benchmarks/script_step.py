"""A training step as in cr_muons, the script that icestream replaces, written anew and plainly.

Its networks: the generator repeats an event's context for each muon, the critic embeds muons, takes the largest of each
feature and scores the event, divided by the running mean of the scores' size. Its step: five critic updates on one real
batch; in every second one a penalty on the slope at 4,096 muons, drawn from the batch, each with a norm of its own;
then one update of the generator, and one of the network for the number of muons. Muons have three features, and the
generated events have the real counts, so that both steps work on as many muons.

Shape suffixes: E events, P particles, F features, C conditions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

CRITIC_STEPS, PENALTY_EVERY, PENALTY_MUONS, PENALTY_WEIGHT = 5, 2, 4096, 10.0


@dataclass(frozen=True)
class Widths:
    """Widths of the layers."""

    context: tuple[int, int] = (128, 256)
    muon: tuple[int, int] = (128, 64)
    embedding: tuple[int, int] = (64, 128)
    decision: tuple[int, int] = (128, 64)
    noise: tuple[int, int] = (32, 16)

    @classmethod
    def all(cls, width: int, noise: tuple[int, int]) -> Widths:
        """The same width everywhere."""
        both = (width, width)
        return cls(both, both, both, both, noise)


def layers(inputs: int, widths: tuple[int, ...], outputs: int, *, norm: bool) -> nn.Sequential:
    """Hidden layers with leaky ReLU, and one for the result if ``outputs``."""
    made: list[nn.Module] = []
    for width in widths:
        made += [nn.Linear(inputs, width), *([nn.LayerNorm(width)] if norm else []), nn.LeakyReLU(0.2)]
        inputs = width
    return nn.Sequential(*made, *([nn.Linear(inputs, outputs)] if outputs else []))


class ScriptStep:
    """Networks, optimisers and the step."""

    def __init__(self, conditions: int, features: int, widths: Widths) -> None:
        noise_event, self.noise_muon = widths.noise
        self.noise_event = noise_event
        self.context = layers(noise_event + conditions + 1, widths.context, 0, norm=True)
        self.muons = layers(widths.context[1] + self.noise_muon, widths.muon, features, norm=False)
        self.embedding = layers(features + conditions, widths.embedding, 0, norm=True)
        self.decision = layers(widths.embedding[1] + conditions, widths.decision, 1, norm=True)
        self.count = layers(conditions, (64, 128, 64), 1, norm=False)
        self._size = torch.ones(())
        rates = {"lr": 1e-4, "betas": (0.0, 0.9)}
        self._critic = Adam([*self.embedding.parameters(), *self.decision.parameters()], **rates)
        self._generator = Adam([*self.context.parameters(), *self.muons.parameters()], **rates)
        self._count = Adam(self.count.parameters(), lr=1e-3)
        self._updates = 0

    def step(self, real_PF: Tensor, conditions_EC: Tensor, counts_E: Tensor) -> dict[str, float]:
        """Do one step. Returns its losses on the host."""
        event_P = torch.repeat_interleave(torch.arange(len(counts_E)), counts_E)
        found = {}
        for _ in range(CRITIC_STEPS):
            with torch.no_grad():
                fake_PF = self._fake(conditions_EC, counts_E)
            real_E = self._score(real_PF, event_P, conditions_EC)
            fake_E = self._score(fake_PF, event_P, conditions_EC)
            loss = fake_E.mean() - real_E.mean()
            if self._updates % PENALTY_EVERY == 0:
                loss = loss + PENALTY_WEIGHT * self._penalty(real_PF, fake_PF, event_P, conditions_EC)
            self._updates += 1
            self._critic.zero_grad()
            loss.backward()
            self._critic.step()
            found["c_loss"] = loss.item()
        loss = -self._score(self._fake(conditions_EC, counts_E), event_P, conditions_EC).mean()
        self._generator.zero_grad()
        loss.backward()
        self._generator.step()
        found["g_loss"] = loss.item()
        loss = F.mse_loss(self.count(conditions_EC).squeeze(1), (counts_E + 1.0).log10())
        self._count.zero_grad()
        loss.backward()
        self._count.step()
        return found | {"m_loss": loss.item()}

    def _fake(self, conditions_EC: Tensor, counts_E: Tensor) -> Tensor:
        """Generated features. -> (P, F)."""
        noise_E = torch.randn(len(counts_E), self.noise_event)
        context_ED = self.context(torch.cat([noise_E, conditions_EC, (counts_E + 1.0).log10().unsqueeze(1)], 1))
        context_PD = torch.repeat_interleave(context_ED, counts_E, dim=0)
        features_PF: Tensor = self.muons(torch.cat([context_PD, torch.randn(len(context_PD), self.noise_muon)], 1))
        return features_PF

    def _score(self, features_PF: Tensor, event_P: Tensor, conditions_EC: Tensor) -> Tensor:
        """Scores of all events, bounded. -> (E,)."""
        muons_PD = self.embedding(torch.cat([features_PF, conditions_EC[event_P]], 1)).nan_to_num(0.0, 0.0, 0.0)
        largest_ED = torch.full((len(conditions_EC), muons_PD.shape[1]), -1e9)
        index_PD = event_P.unsqueeze(1).expand_as(muons_PD)
        largest_ED = largest_ED.scatter_reduce(0, index_PD, muons_PD, "amax")
        scores_E: Tensor = self.decision(torch.cat([largest_ED, conditions_EC], 1)).squeeze(1)
        with torch.no_grad():
            self._size.lerp_(scores_E.abs().mean(), 0.01)
        return 10.0 * torch.tanh((scores_E / max(self._size.item(), 0.1)).clamp(-5, 5) / 5)

    def _penalty(self, real_PF: Tensor, fake_PF: Tensor, event_P: Tensor, conditions_EC: Tensor) -> Tensor:
        """Mean over the drawn muons of (norm of the slope - 1)²."""
        drawn = torch.randperm(len(event_P))[:PENALTY_MUONS].sort().values
        events, of_event = event_P[drawn].unique(return_inverse=True)
        mix = torch.rand(len(events), 1)[of_event]
        between = (mix * real_PF[drawn] + (1 - mix) * fake_PF[drawn]).requires_grad_(True)
        scores = self._score(between, of_event, conditions_EC[events])
        (slope,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()
