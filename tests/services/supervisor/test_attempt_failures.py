"""Failures of the attempts of a run on several nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.locks import OutdatedAttemptError, begin_attempt
from services.supervisor.child import MOST_FAILURES
from services.supervisor.nodes.failures import AttemptFailures

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


def test_an_error_with_other_numbers_on_each_node_counts_once(shared: Path) -> None:
    def all_fail() -> list[int]:
        attempt = begin_attempt(shared)
        return [AttemptFailures(attempt).times(1, f"IndexError: index {17 + node} is out", 0) for node in range(8)]

    assert [all_fail() for _ in range(MOST_FAILURES - 1)] == [[0] * 8] * (MOST_FAILURES - 1)
    assert all_fail() == [5] * 8


def test_a_failure_of_the_machine_that_another_node_adds_hides_no_error(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both nodes write before one of them reads."""
    fail_often(shared)
    attempt, read_text = begin_attempt(shared), Path.read_text

    def read_later(path: Path, *arguments: Any, **options: Any) -> str:
        if path.name == "failures.jsonl":
            monkeypatch.setattr(Path, "read_text", read_text)
            AttemptFailures(attempt).times(1, "RankLost: rank 0 is gone", 0)
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", read_later)
    assert AttemptFailures(attempt).times(1, BUG, 0) == 5


@pytest.mark.parametrize("left", [b"[3, 0, 1, ", b"\0\0\0\0", b"7\n", b"\xff\n"])
def test_what_is_left_of_a_line_is_skipped(shared: Path, left: bytes) -> None:
    """Of a killed process, or of two nodes that wrote at the same time to a file server without appends."""
    fail_often(shared)
    with (shared / "nodes" / "failures.jsonl").open("ab") as file:
        file.write(left)
    assert fails(shared) == 5


def test_an_older_attempt_records_nothing(shared: Path) -> None:
    older = AttemptFailures(begin_attempt(shared))
    begin_attempt(shared)
    with pytest.raises(OutdatedAttemptError):
        older.times(1, BUG, 0)
    assert not (shared / "nodes" / "failures.jsonl").exists()
