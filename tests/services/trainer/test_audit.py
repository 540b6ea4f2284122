"""audit.jsonl: a function of the stream alone, continued exactly at the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from common.config import StreamConfig
from common.locks import OutdatedAttemptError, RunAttempt, begin_attempt
from common.messages import Layout
from common.paths import shard_dir
from common.schema import UnitArrays
from common.unit_arrays import slot_bytes_needed, unit_arrays
from services.trainer.agreement import shares_of_rank
from services.trainer.audit import AUDIT_FILE, Audit, audit_file, audit_line
from services.trainer.ranks import Ranks
from services.trainer.state import TrainState
from workloads.base.module_training import NoModelTask
from workloads.muons.columns import MUONS

LAYOUT = Layout(events=4, particles=6, microbatches=2)
CPU = torch.device("cpu")
TWO_SHARDS = StreamConfig(shards=2)


@pytest.fixture
def arrays() -> UnitArrays:
    slot = np.zeros(slot_bytes_needed(MUONS, LAYOUT), np.uint8)
    arrays = unit_arrays(slot, MUONS, LAYOUT)
    arrays.offsets[:] = [0, 1, 3, 3, 6]
    arrays.microbatch_bounds[:] = [0, 2, 4]
    arrays.particle_columns["muons"][:] = np.arange(18).reshape(6, 3)
    return arrays


def test_a_line_says_where_the_microbatch_is_from_and_what_it_holds(arrays: UnitArrays) -> None:
    line = json.loads(audit_line(arrays, 3, 1, 5, 1))
    digest = line.pop("digest")
    assert line == {"shard": 3, "epoch": 1, "unit": 5, "microbatch": 1, "events": 2, "particles": 3}
    assert len(digest) == 32


@pytest.mark.parametrize("column", ["muons", "primary", "primary_id", "source_row", "offsets"])
def test_the_digest_changes_with_every_byte_of_the_microbatch_and_no_other(arrays: UnitArrays, column: str) -> None:
    before = [audit_line(arrays, 0, 0, 0, index) for index in range(2)]
    columns = arrays.particle_columns | arrays.event_columns | {"offsets": arrays.offsets}
    columns[column][-1 if column != "offsets" else 3] += 1
    after = [audit_line(arrays, 0, 0, 0, index) for index in range(2)]
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_resumed_run_continues_the_file_where_its_checkpoint_was(tmp_path: Path) -> None:
    audit = Audit(tmp_path, {})
    audit.write([(0, "one"), (0, "two")])
    committed = audit.commit()
    audit.write([(0, "trained, but lost with the process")])
    audit = Audit(tmp_path, committed)
    audit.write([(0, "three")])
    audit.commit()
    assert (tmp_path / AUDIT_FILE).read_text() == "one\ntwo\nthree\n"
    assert (tmp_path / AUDIT_FILE).stat().st_mode & 0o077 == 0


class OneOfSeveral(Ranks):
    """A rank, to which the others' texts are told."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.own = ""
        self.told: list[str] = []

    def gather(self, text: str) -> list[str]:
        self.own = text
        return [*self.told, text]


def session(run_dir: Path, sizes: dict[str, int], num_ranks: int, stream: StreamConfig, word: str) -> dict[str, int]:
    """Each of ``num_ranks`` trainers writes a line to each of its shards, and one behind the checkpoint. Returns what
    this one holds."""
    ranks = [OneOfSeveral(rank, num_ranks) for rank in range(num_ranks)]
    audits = [Audit(run_dir, sizes, rank, stream) for rank in ranks]
    for rank, audit in zip(ranks, audits, strict=True):
        for share in shares_of_rank(stream, rank.rank, num_ranks):
            audit.write([(share.shard, f"{share.shard} {share.rank} {word}")])
    for audit in audits:
        audit.commit()
    for rank in ranks:
        rank.told = [other.own for other in ranks]
    committed, *others = (audit.commit() for audit in audits)
    assert all(other == committed for other in others), "the sizes of all files, on every rank"
    for rank, audit in zip(ranks, audits, strict=True):
        for share in shares_of_rank(stream, rank.rank, num_ranks):
            audit.write([(share.shard, "behind the checkpoint")])
    return committed


@pytest.mark.parametrize(
    ("stream", "numbers"),
    [
        (StreamConfig(), (2, 1, 2)),
        (StreamConfig(), (3, 1, 2, 3)),
        (StreamConfig(), (4, 2, 1, 4)),
        (TWO_SHARDS, (1, 4, 2, 4)),
    ],
)
def test_no_trainer_loses_its_audit_while_a_run_has_fewer_trainers(
    tmp_path: Path, stream: StreamConfig, numbers: tuple[int, ...]
) -> None:
    sizes: dict[str, int] = {}
    expected: dict[Path, list[str]] = {}
    for number, num_ranks in enumerate(numbers):
        sizes = session(tmp_path, sizes, num_ranks, stream, f"in session {number}")
        for share in (share for rank in range(num_ranks) for share in shares_of_rank(stream, rank, num_ranks)):
            path = shard_dir(tmp_path, share.shard if stream.shards > 1 else None) / audit_file(share.rank)
            expected.setdefault(path, []).append(f"{share.shard} {share.rank} in session {number}")
    Audit(tmp_path, sizes, None, stream)
    assert {path: path.read_text().splitlines() for path in tmp_path.rglob("*.jsonl")} == expected


def test_the_sizes_in_a_checkpoint_cut_no_other_file(tmp_path: Path) -> None:
    other = tmp_path / "of-the-user.jsonl"
    other.write_text("all of it")
    Audit(tmp_path / "run", {"../of-the-user.jsonl": 0, str(other): 0, "shards/../../of-the-user.jsonl": 0})
    assert other.read_text() == "all of it"


@pytest.mark.parametrize(("former", "now"), [(4, 2), (2, 4), (1, 2), (2, 2)])
def test_a_new_plan_of_other_shards_cuts_no_audit_inside_a_line(tmp_path: Path, former: int, now: int) -> None:
    audit = Audit(tmp_path, {}, None, StreamConfig(shards=former))
    audit.write([(shard, json.dumps({"text": "x" * shard * shard})) for shard in range(former)])
    progress = TrainState(NoModelTask(CPU), CPU, "former", stream=StreamConfig(shards=former))
    progress.audit_bytes = audit.commit()
    kept = {path: path.read_text() for path in tmp_path.rglob("*.jsonl")}
    resumed = TrainState(NoModelTask(CPU), CPU, "new", stream=StreamConfig(shards=now))
    resumed.restore(progress.checkpoint("{}"))
    Audit(tmp_path, resumed.audit_bytes, None, StreamConfig(shards=now)).commit()
    assert {path: text for path in tmp_path.rglob("*.jsonl") if (text := path.read_text())} == kept


def audit_of(attempt: RunAttempt, sizes: dict[str, int] | None = None, ranks: Ranks | None = None) -> Audit:
    return Audit(attempt.shared, sizes or {}, ranks, TWO_SHARDS, attempt)


def lines(shared: Path, shard: int) -> list[str]:
    return (shared / "shards" / f"{shard:03d}" / "audit.jsonl").read_text().splitlines()


def test_of_several_nodes_lines_reach_the_files_with_the_checkpoint_and_not_before(tmp_path: Path) -> None:
    audit = audit_of(begin_attempt(tmp_path))
    audit.write([(0, "one"), (1, "two")])
    audit.write([(0, "three")])
    assert lines(tmp_path, 0) == []
    sizes = audit.commit()
    assert (lines(tmp_path, 0), lines(tmp_path, 1)) == (["one", "three"], ["two"])
    assert list(sizes.values()) == [10, 4]
    assert audit.commit() == sizes


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
        older.cut({})
    assert lines(tmp_path, 0) == ["one", "seven"]
