"""The adaptive critic's controller, with scripted gaps."""

from __future__ import annotations

from workloads.muons.models.wgan.adaptive import AdaptiveState, check
from workloads.muons.models.wgan.config import AdaptiveConfig

CONFIG = AdaptiveConfig(enabled=True, max_critic_steps=7, max_penalty_weight=2.0)
START = AdaptiveState(5, 1.0)


def run(gaps: list[float], norms: list[float] | None = None) -> tuple[AdaptiveState, list[str]]:
    state, reasons = START, []
    for index, gap in enumerate(gaps):
        norm = norms[index] if norms else 1.0
        decision = check(state, CONFIG, gap=gap, gp_norm=norm, critic_steps=5, penalty_weight=1.0)
        state = decision.state
        reasons.append(decision.reason)
    return state, reasons


def test_a_quiet_run_changes_nothing() -> None:
    state, reasons = run([1.0, 1.1, 0.9, 1.0, 1.05, 0.8] * 10)

    assert (state.critic_steps, state.penalty_weight) == (5, 1.0)
    assert not any(reasons)


def test_a_gap_that_collapses_gives_the_critic_a_step_a_check_up_to_the_limit() -> None:
    state, reasons = run([1.0] * 5 + [0.2, 0.2, 0.2, 0.1])

    assert state.critic_steps == 7
    assert [bool(reason) for reason in reasons[5:]] == [True, True, False, False]
    assert "critic_steps 5 -> 6" in reasons[5]
    assert "below 0.25 x 1" in reasons[5]


def test_before_there_is_a_median_nothing_is_too_weak() -> None:
    assert run([1.0, 1.0, 0.1])[0].critic_steps == 5


def test_a_gap_that_rises_again_and_again_with_steep_slopes_strengthens_the_penalty() -> None:
    state, reasons = run([1.0, 1.1, 1.2, 1.3], [2.0] * 4)

    assert state.penalty_weight == 1.5
    assert "penalty_weight 1 -> 1.5" in reasons[-1]
    assert run([1.0, 1.1, 1.2, 1.3], [1.0] * 4)[0].penalty_weight == 1.0  # rising alone is no harm
    assert run([float(gap) for gap in range(1, 30)], [2.0] * 29)[0].penalty_weight == 2.0  # the limit


def test_five_quiet_checks_take_back_one_step_each_and_never_more_than_was_given() -> None:
    collapsed = [1.0] * 5 + [0.2, 0.2]
    assert run(collapsed)[0].critic_steps == 7
    assert run([*collapsed, *[1.0] * 4])[0].critic_steps == 7
    assert run([*collapsed, *[1.0] * 5])[0].critic_steps == 6
    assert run([*collapsed, *[1.0] * 30])[0].critic_steps == 5

    steep = [1.0, 1.1, 1.2, 1.3]
    state, reasons = run([*steep, *[1.0] * 5], [2.0] * 9)
    assert state.penalty_weight == 1.0
    assert reasons[-1].endswith("5 quiet checks")


def test_a_gap_of_zero_or_below_is_judged_only_against_a_positive_median() -> None:
    assert run([-1.0] * 10)[0].critic_steps == 5
    assert run([1.0] * 5 + [-0.5])[0].critic_steps == 6
