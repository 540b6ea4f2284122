"""Audits of several nodes, in the folder that they share: continued at the checkpoint by a trainer on any node."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.attempt import OutdatedAttemptError, RunAttempt, begin_attempt
from common.config import StreamConfig
from services.trainer.ranks.rank_group import SingleRank
from services.trainer.stream.audit import Audit

STREAM = StreamConfig(shards=2)


class OneOfSeveral(SingleRank):
    """A rank of two, whose peer has files of this size."""

    def __init__(self, rank: int, of_other: int = 0) -> None:
        self.rank, self.size = rank, 2
        self._of_other = str(of_other)

    def gather(self, text: str) -> list[str]:
        return [text, self._of_other] if self.rank == 0 else [self._of_other, text]


def audit_of(attempt: RunAttempt, sizes: tuple[int, ...] = (), ranks: SingleRank | None = None) -> Audit:
    return Audit(attempt.shared, sizes, ranks or SingleRank(), STREAM, attempt)


def lines(shared: Path, shard: int) -> list[str]:
    return (shared / "shards" / f"{shard:03d}" / "audit.jsonl").read_text().splitlines()


def test_lines_reach_the_files_with_the_checkpoint_and_not_before(tmp_path: Path) -> None:
    audit = audit_of(begin_attempt(tmp_path))
    audit.write([(0, "one"), (1, "two")])
    audit.write([(0, "three")])
    assert lines(tmp_path, 0) == []
    sizes = audit.commit()
    assert (lines(tmp_path, 0), lines(tmp_path, 1)) == (["one", "three"], ["two"])
    assert sizes == (10, 4)
    assert audit.commit() == sizes
    audit.write([(0, "four")])
    assert lines(tmp_path, 0) == ["one", "three"]


def test_a_checkpoint_holds_the_sizes_of_all_ranks(tmp_path: Path) -> None:
    audit = audit_of(begin_attempt(tmp_path), ranks=OneOfSeveral(1, 7))
    audit.write([(1, "one")])
    assert audit.commit() == (7, 4)


def test_the_files_go_on_on_other_nodes_where_the_checkpoint_is(tmp_path: Path) -> None:
    first = audit_of(begin_attempt(tmp_path))
    first.write([(0, "one"), (1, "one")])
    sizes = first.commit()
    first.write([(0, "two")])
    first.commit()  # but the checkpoint of these sizes never came to disk
    attempt = begin_attempt(tmp_path)
    for shard in (0, 1):  # two nodes now, each with a rank
        audit = audit_of(attempt, sizes, OneOfSeveral(shard, sizes[1 - shard]))
        audit.write([(shard, "five")])
        audit.commit()
    assert (lines(tmp_path, 0), lines(tmp_path, 1)) == (["one", "five"], ["one", "five"])


def test_a_rollback_cuts_the_files_and_what_was_not_written_yet(tmp_path: Path) -> None:
    audit = audit_of(begin_attempt(tmp_path))
    audit.write([(0, "one")])
    sizes = audit.commit()
    audit.write([(0, "two")])
    audit.commit()
    audit.write([(0, "three")])
    audit.cut(sizes)
    assert lines(tmp_path, 0) == ["one"]
    audit.write([(0, "four")])
    audit.commit()
    assert lines(tmp_path, 0) == ["one", "four"]


def test_a_rank_of_an_older_attempt_writes_nothing(tmp_path: Path) -> None:
    older = audit_of(begin_attempt(tmp_path))
    older.write([(0, "one")])
    sizes = older.commit()
    older.write([(0, "two")])
    newer = audit_of(begin_attempt(tmp_path), sizes)
    newer.write([(0, "seven")])
    newer.commit()
    with pytest.raises(OutdatedAttemptError):
        older.commit()
    with pytest.raises(OutdatedAttemptError):
        older.cut((0, 0))
    assert lines(tmp_path, 0) == ["one", "seven"]
