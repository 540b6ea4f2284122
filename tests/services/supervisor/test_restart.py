"""The restart policy, with a time that the tests make up."""

from __future__ import annotations

import pytest

from services.supervisor.restart import MOST_FAILURES, Ended, RepeatedFailure, Restart, RestartPolicy, UserError


def pauses_of_a_process_that_dies_at_once(policy: RestartPolicy, deaths: int) -> list[float]:
    pauses = []
    for _ in range(deaths):
        policy.started(now_s=1000.0)
        verdict = policy.ended(-9, now_s=1000.0)
        assert isinstance(verdict, Restart)
        pauses.append(verdict.after_s)
    return pauses


def test_the_pause_doubles_with_each_death_in_a_row_up_to_the_longest() -> None:
    pauses = pauses_of_a_process_that_dies_at_once(RestartPolicy(5, 300), 9)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_a_pause_of_zero_stays_zero() -> None:
    assert pauses_of_a_process_that_dies_at_once(RestartPolicy(0, 300), 3) == [0, 0, 0]


def test_the_longest_pause_also_bounds_the_first() -> None:
    assert pauses_of_a_process_that_dies_at_once(RestartPolicy(10, 4), 2) == [4, 4]


@pytest.mark.parametrize(("longest_s", "healthy_s"), [(300.0, 60.0), (20.0, 20.0)])
def test_a_process_that_lived_long_enough_starts_with_the_shortest_pause_again(
    longest_s: float, healthy_s: float
) -> None:
    policy = RestartPolicy(5, longest_s)
    pauses_of_a_process_that_dies_at_once(policy, 2)
    policy.started(now_s=0.0)
    assert policy.ended(1, now_s=healthy_s) == Restart(20)
    policy.started(now_s=100.0)
    assert policy.ended(1, now_s=100.1 + healthy_s) == Restart(5)


def test_a_process_that_ended_with_success_is_not_started_again() -> None:
    policy = RestartPolicy(5, 300)
    policy.started(0.0)
    assert policy.ended(0, 1.0) == Ended()


def test_an_error_of_the_user_is_not_tried_again() -> None:
    policy = RestartPolicy(5, 300)
    policy.started(0.0)
    assert policy.ended(2, 1.0) == UserError()


@pytest.mark.parametrize("exit_code", [1, 3, 120, -9, -11, -15])
def test_any_other_exit_code_or_signal_is_a_death(exit_code: int) -> None:
    policy = RestartPolicy(5, 300)
    policy.started(0.0)
    assert policy.ended(exit_code, 1.0) == Restart(5)


def test_the_first_start_does_not_count_as_a_restart() -> None:
    policy = RestartPolicy(5, 300)
    assert policy.restarts == 0
    policy.started(0.0)
    assert policy.restarts == 0
    policy.started(1.0)
    policy.started(2.0)
    assert policy.restarts == 2


def test_one_that_left_and_is_wanted_again_was_not_restarted() -> None:
    policy = RestartPolicy(5, 300)
    policy.started(0.0)
    policy.started(1.0)
    assert policy.restarts == 1
    policy.returns()
    policy.started(2.0)
    assert policy.restarts == 1


def test_the_same_error_without_a_step_in_between_makes_a_restart_useless() -> None:
    failure = RepeatedFailure()
    verdicts = [failure.again(1, f"ValueError: wrong shape at step 2{n}", step=200) for n in range(MOST_FAILURES)]
    assert verdicts == [False] * (MOST_FAILURES - 1) + [True]


def test_a_step_or_another_error_in_between_starts_the_count_anew() -> None:
    stepping, changing = RepeatedFailure(), RepeatedFailure()
    for number in range(3 * MOST_FAILURES):
        assert not stepping.again(1, "ValueError: rare", step=number)
        assert not changing.again(1, f"{'Value' if number % 2 else 'Key'}Error: odd", step=0)


def test_steps_made_again_after_a_restart_are_no_progress() -> None:
    failure = RepeatedFailure()
    steps = [206, 204, 206, 205, 206]
    assert [failure.again(1, "ValueError: step 206", step=step) for step in steps][-1]


@pytest.mark.parametrize(
    ("exit_code", "error"),
    [
        (-9, "ValueError: before the kill"),
        (1, ""),
        (1, "OSError: [Errno 5] Input/output error: 'x'"),
        (1, "PermissionError: [Errno 13] Permission denied"),
        (1, "MemoryError"),
        (1, "common.input_errors.MachineError: /data/x: Stale file handle"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        (1, "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        (1, "sqlite3.OperationalError: disk I/O error"),
        (1, "rank 1 is gone: this rank ends too; all resume from the newest checkpoint"),
    ],
)
def test_an_error_of_the_machine_is_tried_again_however_often(exit_code: int, error: str) -> None:
    failure = RepeatedFailure()
    assert not any(failure.again(exit_code, error, step=0) for _ in range(5 * MOST_FAILURES))
