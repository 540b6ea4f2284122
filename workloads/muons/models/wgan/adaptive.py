"""Adaptive critic: a pure controller of critic steps and penalty weight.

Inputs are the gap D(real) - D(fake) on a batch before training on it, and the gradient norm of the penalty.
A gap far below its running median means that the critic is too weak: it gets one more step. A gap that rises check
after check with a large gradient norm means that the critic diverges: the penalty grows. Quiet checks take
both back, one step at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from workloads.muons.models.wgan.config import AdaptiveConfig

_GAPS_KEPT = 50
_GAPS_NEEDED = 5
"""Gaps before the median is used."""


@dataclass(frozen=True)
class AdaptiveState:
    """State of the controller; part of a checkpoint."""

    critic_steps: int
    penalty_weight: float
    gaps: tuple[float, ...] = ()
    rises: int = 0
    """Consecutive checks with a rising gap."""
    quiet: int = 0
    """Consecutive checks without a change."""


@dataclass(frozen=True)
class Decision:
    """State of the controller after a check, and the reason for a change (empty: no change)."""

    state: AdaptiveState
    reason: str = ""


def check(
    state: AdaptiveState,
    config: AdaptiveConfig,
    *,
    gap: float,
    gp_norm: float,
    critic_steps: int,
    penalty_weight: float,
) -> Decision:
    """Decision of one check. Quiet checks return to the configured ``critic_steps`` and ``penalty_weight``."""
    typical = median(state.gaps) if len(state.gaps) >= _GAPS_NEEDED else None
    rises = state.rises + 1 if state.gaps and gap > state.gaps[-1] else 0
    seen = replace(state, gaps=(*state.gaps, gap)[-_GAPS_KEPT:], rises=rises)

    if typical is not None and gap < config.weak_gap * typical and typical > 0:
        steps = min(state.critic_steps + 1, config.max_critic_steps)
        reason = f"critic_steps {state.critic_steps} -> {steps}: the gap {gap:.4g} is below {config.weak_gap:g} x "
        return Decision(
            replace(seen, critic_steps=steps, quiet=0),
            f"{reason}{typical:.4g}, its median" if steps != state.critic_steps else "",
        )
    if rises >= config.rising_checks and gp_norm > config.max_gp_norm and state.penalty_weight > 0:
        weight = max(state.penalty_weight, min(state.penalty_weight * config.penalty_factor, config.max_penalty_weight))
        reason = f"penalty_weight {state.penalty_weight:.4g} -> {weight:.4g}: the gap rose {rises} times in a row, "
        return Decision(
            replace(seen, penalty_weight=weight, rises=0, quiet=0),
            f"{reason}gradient norm {gp_norm:.3g}" if weight != state.penalty_weight else "",
        )
    quiet = state.quiet + 1
    relaxed_steps = max(state.critic_steps - 1, critic_steps)
    relaxed_weight = max(state.penalty_weight / config.penalty_factor, penalty_weight)
    if quiet < config.quiet_checks or (relaxed_steps, relaxed_weight) == (state.critic_steps, state.penalty_weight):
        return Decision(replace(seen, quiet=quiet))
    return Decision(
        replace(seen, critic_steps=relaxed_steps, penalty_weight=relaxed_weight, quiet=0),
        f"critic_steps {state.critic_steps} -> {relaxed_steps}, penalty_weight {state.penalty_weight:.4g} -> "
        f"{relaxed_weight:.4g}: {quiet} quiet checks",
    )
