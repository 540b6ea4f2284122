"""Settings of the muon models, with the reason for each default in ``docs/explanation/models.md``.

Beside them, bounds on what the models generate.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from common.config import ConfigBranch
from workloads.base.training import StepSettings

MAX_COUNT = 100_000
"""Most muons in a generated event; larger ones are truncated: a rare extreme costs one wrong event, not the memory."""
MAX_DEVIATION = 10.0
"""Bound on a generated feature, in standard deviations of the training data from their mean: no real muon is there."""


class MuonNetworkConfig(ConfigBranch):
    """Features and sizes of the networks: a checkpoint fits only the network it was written with."""

    azimuth: Literal["symmetric", "learned"] = "symmetric"
    """``symmetric``: the radius is generated and the azimuth drawn uniformly. ``learned``: it is generated, too,
    for data where a magnetic field or the detector breaks the symmetry."""

    zero_truncated_counts: bool = False
    """Train the count head with p(N | N ≥ 1), for files without empty events (Muonitron leaves them out): it then
    still generates empty events, at the rate that the other events imply."""

    energy_cut_gev: float = Field(1.0, ge=0)
    """Lowest energy that the simulation recorded, in GeV: no muon below is generated, and the first batch must have
    none. 0: unknown."""

    latent: int = Field(2, ge=1)
    """Number of random numbers that the muons of an event share, such as the height where their shower began."""

    hidden: int = Field(64, ge=1)
    """Width of every hidden layer, except for the count head's."""


class LikelihoodConfig(StepSettings):
    """Training of the likelihood model. Both learning rates follow one cycle of ``schedule_steps``: they rise over its
    first twentieth, and fall to 0.1 % along a cosine. Without a cycle they stay at a quarter."""

    schedule: ClassVar[str] = "one_cycle"
    warmup_steps: ClassVar[int] = 0
    """No further warm-up: the cycle begins with one."""
    gradient_clip: ClassVar[float] = 0.0
    """No limit: the figures of docs/explanation/models.md were measured without one."""
    max_muons: ClassVar[int] = 2000
    """Most muons of an event in training: a random subset of larger events in each step, which has a likelihood of its
    own. The count head, the input N and the event's weight keep the whole number."""

    network: MuonNetworkConfig = MuonNetworkConfig()
    """Sizes and shapes."""

    likelihood_lr: float = Field(8e-3, gt=0)
    """Learning rate of the muons' densities (Adam), the highest of the schedule. The count head's is twice as high."""


class WganConfig(StepSettings):
    """Training of the muon WGAN: the likelihood model, then what a critic corrects of it.

    Both learning rates fall along a cosine over all steps of the run: after half of it they are at half."""

    schedule: ClassVar[str] = "cosine"
    warmup_steps: ClassVar[int] = 0
    gradient_clip: ClassVar[float] = 0.0
    """Neither a warm-up nor a limit: the defaults of docs/explanation/models.md were measured without them."""
    gp_every: ClassVar[int] = 2
    """Critic updates for each gradient penalty, the most expensive part, which is multiplied by this number."""

    network: MuonNetworkConfig = MuonNetworkConfig()
    """Sizes."""

    likelihood_steps: int = Field(default=1500, ge=0)
    """Steps at the beginning that train the likelihood model, with its defaults. Then it stays as it is, and the
    generator learns to correct what it draws. 0: for a start from the weights of a trained WGAN."""

    generator_lr: float = Field(default=5e-4, gt=0)
    """Learning rate of the generator (Adam) at the start of the schedule."""

    critic_lr: float = Field(default=1e-3, gt=0)
    """Learning rate of the critic (Adam) at the start of the schedule: twice the generator's."""

    critic_steps: int = Field(default=3, ge=1)
    """Critic updates per step, all on the same real batch, with generated events of their own."""

    penalty_weight: float = Field(default=1.0, ge=0)
    """λ, the weight of the gradient penalty."""

    energy_score_weight: float = Field(default=100.0, ge=0)
    """Weight of the energy score in the generator's loss, besides the critic's score: it compares single muons and a
    few features of an event directly, and keeps their distributions stable (docs/explanation/models.md). 0: none, as in
    a plain WGAN."""

    compile: bool = False
    """Compile generator and critic with `torch.compile`: a minute or more at the start, seconds when a run before has
    done it. On the CPU it needs a C++ compiler and is not faster; on CUDA it needs a C compiler and Python's headers,
    and moves 0.75 of the bytes in tf32, 0.56 in bf16 (counted by the CPU's compiler, not measured)."""

    def of_likelihood(self) -> LikelihoodConfig:
        """Return the settings of the first steps."""
        return LikelihoodConfig(
            network=self.network, schedule_steps=self.likelihood_steps, chunk_particles=self.chunk_particles
        )

    def warnings(self) -> list[str]:
        """See StepSettings."""
        lines = []
        if self.compile:
            lines.append("compile = true: the trainer waits for the compiler at first, a minute or more: see its log")
        if 0 < self.schedule_steps <= self.likelihood_steps:
            lines.append(
                f"schedule_steps = {self.schedule_steps} leaves none of the run to generator and critic, after"
                f" likelihood_steps = {self.likelihood_steps}: set it to the steps of the run"
            )
        if self.penalty_weight == 0:
            lines.append("penalty_weight = 0 leaves the critic unbounded: w_gap is then no distance; use 1.0")
        elif self.penalty_weight > 5:
            lines.append(
                f"penalty_weight = {self.penalty_weight:g} is strong for standardised features:"
                " 10 was measured to give 3 to 15 times the error of 1.0"
            )
        if self.critic_lr < self.generator_lr:
            lines.append(
                f"critic_lr = {self.critic_lr:g} is below generator_lr = {self.generator_lr:g}:"
                " the critic should be the faster one; the default is twice the generator's"
            )
        return lines
