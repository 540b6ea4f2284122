from __future__ import annotations

import pytest

from common import messages as m
from common.errors import BadInputError
from services.fetcher.commit_requests import CommitRequests

HERE = m.Cursor(unit=4)
THERE = m.Cursor(unit=5)


def ask(requests: CommitRequests, now_s: float, *trainers: str, at_work: bool = False) -> list[str]:
    return list(requests.due(now_s, trainers, at_work=at_work))


def test_all_trainers_are_asked_once_until_all_have_committed() -> None:
    requests = CommitRequests("the budget")
    assert ask(requests, 10.0, "a", "b") == ["a", "b"]
    requests.committed("a", m.Committed(HERE), ["a", "b"], units_ahead=0)
    assert ask(requests, 100.0, "a", "b") == []
    requests.committed("b", m.Committed(HERE), ["a", "b"], units_ahead=0)
    assert ask(requests, 101.0, "a", "b") == ["a", "b"]


def test_a_trainer_at_work_is_asked_less_often() -> None:
    requests = CommitRequests("the budget")
    assert ask(requests, 10.0, "a", at_work=True) == ["a"]
    requests.committed("a", m.Committed(HERE), ["a"], units_ahead=1)
    assert ask(requests, 19.0, "a") == []
    assert ask(requests, 20.0, "a") == ["a"]
    requests.committed("a", m.Committed(HERE), ["a"], units_ahead=1)
    assert ask(requests, 21.0, "a") == ["a"]


def test_a_trainer_that_comes_anew_is_asked_again() -> None:
    requests = CommitRequests("the budget")
    assert ask(requests, 10.0, "a") == ["a"]
    requests.attached()
    assert ask(requests, 11.0, "b") == ["b"]


def answer(
    requests: CommitRequests, now_s: float, cursor: m.Cursor, units_ahead: int = 0, *, waits: bool = True
) -> None:
    assert ask(requests, now_s, "a") == ["a"]
    requests.committed("a", m.Committed(cursor, waits), ["a"], units_ahead=units_ahead)


def test_checkpoints_at_one_place_that_free_nothing_end_the_run_with_what_to_change() -> None:
    requests = CommitRequests("fetcher.disk_budget_gib = 2.5")
    for second in range(4):  # the first of them is a new place
        answer(requests, second * 10.0, HERE)
    with pytest.raises(BadInputError, match=r"fetcher.disk_budget_gib = 2.5 is too small"):
        ask(requests, 100.0, "a")


@pytest.mark.parametrize("progress", ["other place", "units ahead", "wanted", "attached"])
def test_any_progress_between_makes_earlier_answers_count_for_nothing(progress: str) -> None:
    requests = CommitRequests("the budget")
    for second in range(3):
        answer(requests, second * 10.0, HERE)
    if progress == "wanted":
        requests.wanted()
    elif progress == "attached":
        requests.attached()
    else:
        answer(requests, 90.0, THERE if progress == "other place" else HERE, units_ahead=progress == "units ahead")
    for second in range(2):
        answer(requests, 100.0 + second * 10.0, HERE if progress != "other place" else THERE)
    assert ask(requests, 200.0, "a") == ["a"]


def test_nothing_is_too_small_while_the_trainer_waits_for_another_shard() -> None:
    requests = CommitRequests("fetcher.disk_budget_gib = 2.5")
    for second in range(20):
        answer(requests, second * 10.0, HERE, waits=False)
    for second in range(3):
        answer(requests, 1000.0 + second * 10.0, HERE)
    with pytest.raises(BadInputError, match="is too small"):
        ask(requests, 2000.0, "a")


def test_one_of_several_trainers_that_waits_for_this_fetcher_is_enough() -> None:
    requests = CommitRequests("fetcher.disk_budget_gib = 2.5")
    for second in range(4):
        assert ask(requests, second * 10.0, "a", "b") == ["a", "b"]
        for trainer in ("a", "b"):
            requests.committed(trainer, m.Committed(HERE, trainer == "a"), ["a", "b"], units_ahead=0)
    with pytest.raises(BadInputError, match="is too small"):
        ask(requests, 100.0, "a", "b")
