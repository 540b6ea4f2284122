"""audit.jsonl: a function of the stream alone, continued exactly at the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from common.config import StreamConfig
from common.messages import Layout
from common.ragged import slot_bytes_needed, unit_arrays
from common.run_dir import shard_dir
from common.unit_arrays import UnitArrays
from services.trainer.progress import TrainingProgress
from services.trainer.ranks.ranks import Ranks
from services.trainer.stream.audit import AUDIT_FILE, Audit, audit_file, audit_line
from services.trainer.stream.shares import shares_of_rank
from workloads.muons.columns import MUONS

LAYOUT = Layout(events=4, particles=6, microbatches=2)


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
    audit = Audit(tmp_path, (), Ranks.alone())
    audit.write([(0, "one"), (0, "two")])
    committed = audit.commit()
    audit.write([(0, "trained, but lost with the process")])
    audit = Audit(tmp_path, committed, Ranks.alone())
    audit.write([(0, "three")])
    audit.commit()
    assert (tmp_path / AUDIT_FILE).read_text() == "one\ntwo\nthree\n"
    assert (tmp_path / AUDIT_FILE).stat().st_mode & 0o077 == 0


class Rank(Ranks):
    """One of two, without the other."""

    def gather(self, text: str) -> list[str]:
        return [text, "7"] if self.is_first else ["9", text]


def test_each_rank_continues_its_own_file_and_tells_the_size_of_all(tmp_path: Path) -> None:
    other = Audit(tmp_path, (), Rank(1, 2))
    other.write([(0, "of rank 1")])
    assert other.commit() == (9, 10)
    assert (tmp_path / "audit-rank1.jsonl").read_text() == "of rank 1\n"
    assert not (tmp_path / AUDIT_FILE).exists()


def test_with_fewer_ranks_than_before_the_first_cuts_the_files_of_those_that_left(tmp_path: Path) -> None:
    (tmp_path / "audit-rank1.jsonl").write_text("kept\nlost\n")
    Audit(tmp_path, (0, 5), Ranks.alone())
    assert (tmp_path / "audit-rank1.jsonl").read_text() == "kept\n"


class Agreeing(Ranks):
    """One of several, which are told to it."""

    texts: Sequence[str] = ()

    def gather(self, text: str) -> list[str]:
        return list(self.texts) or [text] * self.size


def audit_session(run_dir: Path, sizes_bytes: tuple[int, ...], num_ranks: int, line: str) -> tuple[int, ...]:
    """Each of ``num_ranks`` trainers writes a line, and one behind the checkpoint; the sizes that this one holds."""
    ranks = [Agreeing(rank, num_ranks) for rank in range(num_ranks)]
    audits = [Audit(run_dir, sizes_bytes, rank) for rank in ranks]
    for audit in audits:
        audit.write([(0, line)])
        audit.commit()
    for rank in ranks:
        rank.texts = [str((run_dir / audit_file(number)).stat().st_size) for number in range(num_ranks)]
    (committed,) = {audit.commit() for audit in audits}
    for audit in audits:
        audit.write([(0, "behind the checkpoint")])
    return committed


@pytest.mark.parametrize("numbers", [(2, 1, 2), (3, 1, 2, 3), (2, 2), (1, 2, 1, 1, 2), (4, 2, 1, 4)])
def test_no_trainer_loses_its_audit_while_a_run_has_fewer_trainers(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    sizes_bytes: tuple[int, ...] = ()
    expected: dict[int, list[str]] = {}
    for session, num_ranks in enumerate(numbers):
        sizes_bytes = audit_session(tmp_path, sizes_bytes, num_ranks, f"session {session}")
        for rank in range(num_ranks):
            expected.setdefault(rank, []).append(f"session {session}")
    Audit(tmp_path, sizes_bytes, Ranks.alone())
    assert {rank: (tmp_path / audit_file(rank)).read_text().splitlines() for rank in expected} == expected


STREAM = StreamConfig(shards=2)


def lines_of(run_dir: Path) -> dict[str, list[str]]:
    return {str(path.relative_to(run_dir)): path.read_text().splitlines() for path in sorted(run_dir.rglob("*.jsonl"))}


def test_each_shard_has_an_audit_in_its_folder_which_any_number_of_ranks_continues(tmp_path: Path) -> None:
    for shard in range(2):
        shard_dir(tmp_path, shard).mkdir(parents=True)

    def line(shard: int, rank: int, session: int) -> str:
        return json.dumps({"shard": shard, "rank": rank, "session": session})

    sizes_bytes: tuple[int, ...] = ()
    for session, num_ranks in enumerate((1, 4, 2, 4)):
        ranks = [Agreeing(rank, num_ranks) for rank in range(num_ranks)]
        audits = [Audit(tmp_path, sizes_bytes, rank, STREAM) for rank in ranks]
        told = []
        for rank, audit in zip(ranks, audits, strict=True):
            shares = shares_of_rank(STREAM, rank.rank, num_ranks)
            audit.write([(share.shard, line(share.shard, share.rank, session)) for share in shares])
            audit.commit()
            folders = [shard_dir(tmp_path, share.shard) / audit_file(share.rank) for share in shares]
            told.append(" ".join(str(path.stat().st_size) for path in folders))
        for rank in ranks:
            rank.texts = told
        (sizes_bytes,) = {audit.commit() for audit in audits}
        audits[0].write([(0, line(0, 0, 99))])
    Audit(tmp_path, sizes_bytes, Ranks.alone(), STREAM)
    assert lines_of(tmp_path) == {
        f"shards/{shard:03d}/{audit_file(rank)}": [line(shard, rank, session) for session in sessions]
        for shard in range(2)
        for rank, sessions in ((0, range(4)), (1, (1, 3)))
    }


@pytest.mark.parametrize(("former", "now"), [(4, 2), (2, 4), (1, 2), (2, 2)])
def test_a_new_plan_of_other_shards_cuts_no_audit_inside_a_line(tmp_path: Path, former: int, now: int) -> None:
    for shard in range(4):
        shard_dir(tmp_path, shard).mkdir(parents=True)
    before, after = (StreamConfig(shards=shards) for shards in (former, now))
    audit = Audit(tmp_path, (), Ranks.alone(), before)
    audit.write([(shard, json.dumps({"text": "x" * shard * shard})) for shard in range(former)])
    progress = TrainingProgress("former", shards=former)
    progress.audit_bytes = audit.commit()
    kept = lines_of(tmp_path)
    resumed = TrainingProgress("new", shards=now)
    resumed.restore(progress.checkpoint("{}"), accept_new_plan=True)
    audit = Audit(tmp_path, resumed.audit_bytes, Ranks.alone(), after)
    assert len(audit.commit()) == now
    assert {path: lines for path, lines in lines_of(tmp_path).items() if lines} == kept
