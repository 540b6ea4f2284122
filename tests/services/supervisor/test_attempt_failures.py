"""Failures of the attempts of a run on several nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.attempt import OutdatedAttemptError, begin_attempt
from services.supervisor.nodes.failures import AttemptFailures
from services.supervisor.restart import MOST_FAILURES

BUG = "ValueError: width 128 is none of 32, 64"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "nodes").mkdir()
    return tmp_path


def fails(shared: Path, error: str = BUG, *, step: int = 0, nodes: int = 1) -> int:
    """A start that ends with an error of the trainers of these nodes."""
    failures = [AttemptFailures(begin_attempt(shared))] * nodes
    return [one.times(1, error, step) for one in failures][-1]


def fail_often(shared: Path, step: int = 0) -> None:
    assert [fails(shared, step=step) for _ in range(MOST_FAILURES - 1)] == [0] * (MOST_FAILURES - 1)


def test_an_error_of_each_start_ends_them(shared: Path) -> None:
    fail_often(shared)
    for _ in range(3):
        begin_attempt(shared)  # lost with their machines
    assert [fails(shared), fails(shared)] == [5, 6]


def test_a_checkpoint_in_between_or_another_error_begins_anew(shared: Path) -> None:
    fail_often(shared)
    fail_often(shared, 5)
    assert not fails(shared, "KeyError: 'x'", step=5)
    fail_often(shared, 5)


def test_errors_of_a_machine_may_pass(shared: Path) -> None:
    for _ in range(MOST_FAILURES + 1):
        assert not fails(shared, "RankLost: rank 3 is gone")


def test_an_error_of_several_nodes_counts_once(shared: Path) -> None:
    assert [fails(shared, nodes=3) for _ in range(MOST_FAILURES - 1)] == [0] * (MOST_FAILURES - 1)
    assert fails(shared, nodes=3) == 5


def test_an_older_attempt_records_nothing(shared: Path) -> None:
    older = AttemptFailures(begin_attempt(shared))
    begin_attempt(shared)
    with pytest.raises(OutdatedAttemptError):
        older.times(1, BUG, 0)
    assert not (shared / "nodes" / "failures.jsonl").exists()
