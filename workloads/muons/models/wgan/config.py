"""Settings of the muon WGAN, with the reason for each default in ``docs/explanation/model.md``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from common.config import ConfigBranch
from workloads.muons.models.config import MuonNetworkConfig

# Below this, SGD was measured to learn nothing in 2000 steps (docs/explanation/model.md).
MIN_USEFUL_SGD_LR = 1e-3


class NetworkConfig(MuonNetworkConfig):
    """Sizes and shapes of the three networks: a checkpoint fits only the network it was written with."""

    z_global: int = Field(default=16, ge=1)
    """Number of random inputs common to all muons of an event: the difference between events of one primary."""

    z_local: int = Field(default=8, ge=1)
    """Number of random inputs of each muon: the difference between muons of one event."""

    local_tails: int = Field(default=2, ge=0)
    """Number of the ``z_local`` that have exponential tails instead of normal ones, so that rare large energies can be
    generated."""

    hidden: int = Field(default=128, ge=1)
    """Width of every hidden layer of generator and critic."""

    pooling: Literal["mean+max", "max", "mean", "sum"] = "mean+max"
    """Pooling of an event's muons in the critic."""

    layer_norm: bool = True
    """Layer normalisation in the critic. (The generator's event network always has it.)"""

    spectral_norm: bool = False
    """Divide each of the critic's weights by its largest singular value (arXiv:1802.05957): an alternative to the
    gradient penalty. Needs ``layer_norm = false``, which would undo it."""

    xavier_gain: float = Field(default=0.5, ge=0)
    """Gain of the Xavier-uniform initial weights of generator and critic, biases 0. 0: torch's own initialisation."""

    score_limit: float = Field(default=100.0, ge=0)
    """L in L·tanh(score / L), which bounds the critic's score smoothly. 0: unbounded."""

    @model_validator(mode="after")
    def _combinations_make_sense(self) -> NetworkConfig:
        """Raise ValueError for a setting that another one cancels."""
        if self.spectral_norm and self.layer_norm:
            raise ValueError(
                "spectral_norm = true has no effect with layer_norm = true: set layer_norm = false"
                " (and usually penalty_weight = 0)"
            )
        if self.local_tails > self.z_local:
            raise ValueError(
                f"local_tails = {self.local_tails} is more than z_local = {self.z_local}: raise z_local, or lower it"
            )
        return self


class AdaptiveConfig(ConfigBranch):
    """Adaptive critic: strengthens critic or penalty according to a batch before training on it."""

    enabled: bool = False
    """Adapt `critic_steps` and `penalty_weight`. Off: they stay as configured."""

    every: int = Field(default=200, ge=1)
    """Steps between checks. A check takes effect at the next log step: use at least `trainer.log_every`."""

    weak_gap: float = Field(default=0.25, gt=0, lt=1)
    """Fraction of the running median of the gaps below which the critic is too weak and gets one more step."""

    max_critic_steps: int = Field(default=10, ge=1)
    """Most critic steps."""

    rising_checks: int = Field(default=3, ge=2)
    """Consecutive checks with a rising gap and a gradient norm above `max_gp_norm` after which the critic is taken as
    diverging: a stronger penalty."""

    max_gp_norm: float = Field(default=1.5, gt=0)
    """Gradient norm above which the critic is taken as diverging."""

    penalty_factor: float = Field(default=1.5, gt=1)
    """Factor on the penalty weight for a diverging critic."""

    max_penalty_weight: float = Field(default=20.0, gt=0)
    """Largest penalty weight."""

    quiet_checks: int = Field(default=5, ge=1)
    """Consecutive checks without either after which both return by one step towards their configured values."""


class SamplingConfig(ConfigBranch):
    """Bounds on generated events, so that a rare extreme costs one wrong event and not the memory."""

    max_count: int = Field(default=100_000, ge=1)
    """Most muons in a generated event; larger events are truncated."""

    max_deviation: float = Field(default=10.0, gt=0)
    """Bound on a generated feature, in standard deviations of the training data from their mean."""


class WganConfig(ConfigBranch):
    """Training of the muon WGAN."""

    network: NetworkConfig = NetworkConfig()
    """Sizes and shapes."""

    sampling: SamplingConfig = SamplingConfig()
    """Bounds on generated events."""

    optimiser: Literal["adam", "sgd"] = "adam"
    """Optimiser of generator and critic. The count head always has Adam."""

    generator_lr: float = Field(default=5e-4, gt=0)
    """Learning rate of the generator at the start of the schedule."""

    critic_lr: float = Field(default=1e-3, gt=0)
    """Learning rate of the critic at the start of the schedule."""

    count_lr: float = Field(default=2e-3, gt=0)
    """Learning rate of the count head at the start of the schedule."""

    generator_betas: tuple[float, float] = (0.5, 0.9)
    """Decay of Adam's means of the gradient and of its square, for the generator."""

    critic_betas: tuple[float, float] = (0.0, 0.9)
    """The same for the critic."""

    momentum: float = Field(default=0.5, ge=0, lt=1)
    """Momentum of SGD; no effect with Adam."""

    schedule: Literal["constant", "cosine"] = "cosine"
    """Schedule of the three learning rates after the warm-up: ``cosine`` falls to 5 % over ``schedule_steps``."""

    schedule_steps: int = Field(default=0, ge=0)
    """Optimiser steps of the cosine, usually those of the run. 0: the learning rates stay constant."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimiser steps over which the three learning rates rise from 0 at the start of a run."""

    critic_steps: int = Field(default=3, ge=1)
    """Critic updates per step, all on the same real batch with fresh noise each."""

    critic_max_muons: int = Field(default=0, ge=0)
    """Most muons of an event in the training of generator and critic: a random subset of larger events in each step.
    The count head, and the others' input N, keep the whole number. 0: all."""

    penalty_weight: float = Field(default=1.0, ge=0)
    """λ, the weight of the gradient penalty."""

    gradient_norm: Literal["leading", "plain"] = "leading"
    """Norm of the critic's slope in the penalty. ``leading``: comparable between few and many muons, and the leading
    muon counts as much as the mean of all others. ``plain``: the square root of the sum of all squares, as in
    arXiv:1704.00028."""

    energy_score_weight: float = Field(default=5.0, ge=0)
    """Weight of the energy score in the generator's loss, besides the critic's score: it compares single muons and a
    few features of an event directly, and keeps their distributions stable (docs/explanation/model.md). 0: none."""

    score_events: int = Field(default=8, ge=2)
    """Generated events for each real one in the energy score: more make its gradient less noisy."""

    gp_every: int = Field(default=2, ge=1)
    """Critic updates for each gradient penalty, which is multiplied by this number."""

    one_sided: bool = False
    """Penalise only gradient norms above 1."""

    gradient_clip: float = Field(default=0.0, ge=0)
    """Largest gradient norm of an update, per network. 0: no clipping."""

    generator_average_decay: float = Field(default=0.995, ge=0, lt=1)
    """Decay per step of the running mean of the generator's weights, from which events are generated.
    0: generate from the latest weights."""

    adaptive: AdaptiveConfig = AdaptiveConfig()
    """Adaptive critic."""

    old_definitions: bool = False
    """Report c_loss with the penalty, w_gap of the bounded scores, and m_loss as the mean squared error of lg(1 + N),
    as cr_muons did: for curves beside its own. The training is the same."""

    compile: bool = False
    """Compile generator and critic with `torch.compile`: takes a minute or more at the start, and needs a cache
    directory that isn't mounted noexec, on the CPU a C++ compiler, on CUDA a C compiler and Python's headers. On the
    CPU steps were not faster; on an H100 5 % faster in tf32, slower in bf16."""

    cuda_graphs: bool | Literal["auto"] = False
    """Record an update's operators on a GPU once for each size of its input, and replay them with one call: for small
    batches, whose time is that of the host. ``auto``: where possible, which it isn't with `compile` or
    `network.spectral_norm`. On an H100 a step of 8,192 events takes a seventh of the time."""

    chunk_particles: int = Field(default=0, ge=0)
    """Particles in one pass through the networks: the events of a batch are joined, and processed in chunks of whole
    events, which gives the same gradients with better use of the cache. 0: 8,192 on a CPU with a
    second-level cache of 1 MiB a core, and in proportion to it; on a GPU a power of two that needs at most half of its
    memory."""

    @model_validator(mode="after")
    def _combinations_make_sense(self) -> WganConfig:
        """Raise ValueError, with both fields, both values and the fix, for a setting that another one cancels."""
        for name, betas in (("generator_betas", self.generator_betas), ("critic_betas", self.critic_betas)):
            if not all(0 <= beta < 1 for beta in betas):
                raise ValueError(f"{name} = {betas}: both must be at least 0 and below 1, such as (0.0, 0.9)")
        if self.schedule == "constant" and self.schedule_steps > 0:
            raise ValueError(
                f"schedule_steps = {self.schedule_steps} has no effect with schedule = 'constant':"
                " set schedule = 'cosine', or schedule_steps = 0"
            )
        if self.adaptive.enabled and self.adaptive.max_critic_steps < self.critic_steps:
            raise ValueError(
                f"adaptive.max_critic_steps = {self.adaptive.max_critic_steps} is below critic_steps ="
                f" {self.critic_steps}: raise it, or lower critic_steps"
            )
        return self

    def warnings(self) -> list[str]:
        """Warnings, one line for each setting that is allowed but was measured, or is known, to train badly."""
        found = []
        if self.optimiser == "sgd":
            for name, rate in (("generator_lr", self.generator_lr), ("critic_lr", self.critic_lr)):
                if rate < MIN_USEFUL_SGD_LR:
                    found.append(
                        f"{name} = {rate:g} with optimiser = 'sgd' learns next to nothing:"
                        f" use about 1e-2, or optimiser = 'adam'"
                    )
        if self.network.spectral_norm and self.penalty_weight > 0:
            found.append(
                f"spectral_norm and penalty_weight = {self.penalty_weight:g} bound the critic twice:"
                " penalty_weight = 0 is cheaper"
            )
        if self.penalty_weight == 0 and not self.network.spectral_norm:
            found.append("penalty_weight = 0 leaves the critic unbounded: w_gap is then no distance; use 1.0")
        elif self.penalty_weight > 5:
            found.append(
                f"penalty_weight = {self.penalty_weight:g} is strong for standardised features:"
                " 10 was measured to give 3 to 15 times the error of 1.0"
            )
        if self.critic_lr < self.generator_lr:
            found.append(
                f"critic_lr = {self.critic_lr:g} is below generator_lr = {self.generator_lr:g}:"
                " the critic should be the faster one; the default is twice the generator's"
            )
        return found
