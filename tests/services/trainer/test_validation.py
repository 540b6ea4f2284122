"""The block of a run's first events: filled from the stream, the same after a restart, and of its owner's only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from common.attempt import OutdatedAttemptError, begin_attempt
from common.errors import BadInputError
from services.config.trainer import ValidationConfig
from services.trainer.telemetry.validation import VALIDATION_FILE, ValidationBlock
from workloads.base.batch import Batch, Microbatch

CPU = torch.device("cpu")


def make_part(counts: list[int], first: int, epoch: int = 0) -> Microbatch:
    """Event i, counted from ``first``, and its particles hold the number i."""
    counts_E = torch.tensor(counts, dtype=torch.int64)
    offsets_E1 = torch.cat([torch.zeros(1, dtype=torch.int64), counts_E.cumsum(0)])
    numbers_E1 = torch.arange(first, first + len(counts), dtype=torch.float32).unsqueeze(1)
    offsets_E1 = torch.cat([torch.zeros(1, dtype=torch.int64), counts_E.cumsum(0)])
    part = Microbatch(
        epoch=0,
        unit=0,
        index=0,
        offsets_E1=offsets_E1,
        host_offsets_E1=offsets_E1.numpy(),
        event_columns={"primary": numbers_E1},
        particle_columns={"muons": numbers_E1.repeat_interleave(counts_E, 0)},
        num_events=len(counts),
        num_particles=sum(counts),
    )
    return replace(part, epoch=epoch)


def make_block(run_dir: Path, events: int = 7, *inputs: str) -> ValidationBlock:
    return ValidationBlock(run_dir, ValidationConfig(events=events, input=inputs), CPU)


def contents(batch: Batch | None) -> tuple[list[float], list[int], list[float]]:
    """Events, particles of each, and whose these are."""
    assert batch is not None
    parts = batch.microbatches
    assert batch.num_events == sum(len(part.offsets_E1) - 1 for part in parts)
    assert batch.num_particles == sum(len(part.particle_columns["muons"]) for part in parts)

    def joined(columns: list[Tensor]) -> list[float]:
        return torch.cat(columns).flatten().tolist()

    return (
        joined([part.event_columns["primary"] for part in parts]),
        torch.cat([part.offsets_E1.diff() for part in parts]).tolist(),
        joined([part.particle_columns["muons"] for part in parts]),
    )


def test_it_is_the_first_events_of_the_run_and_the_same_after_a_restart(tmp_path: Path) -> None:
    block = make_block(tmp_path)
    block.add(Batch((make_part([1, 0], 0), make_part([2], 2))))
    block.add(Batch(()))
    assert block.batch is None
    assert not (tmp_path / VALIDATION_FILE).exists()
    block.add(Batch((make_part([], 3), make_part([0, 3], 3))))
    block.add(Batch((make_part([1, 2, 9, 9], 5),)))
    events = ([0, 1, 2, 3, 4, 5, 6], [1, 0, 2, 0, 3, 1, 2], [0, 2, 2, 4, 4, 4, 5, 6, 6])
    assert contents(block.batch) == events
    block.add(Batch((make_part([5], 100),)))
    assert contents(block.batch) == events
    assert (tmp_path / VALIDATION_FILE).stat().st_mode & 0o077 == 0

    restarted = make_block(tmp_path)
    assert contents(restarted.batch) == events
    restarted.add(Batch((make_part([5], 100),)))
    assert contents(restarted.batch) == events
    assert [path.name for path in tmp_path.iterdir()] == [VALIDATION_FILE]


def test_ids_that_the_device_did_not_get_are_in_the_block_and_in_its_file(tmp_path: Path) -> None:
    """Distances between halves of the block need them: events of one shower stay together."""
    block = make_block(tmp_path, 3)
    ids = [{"primary_id": np.array([[7, one], [8, one]], np.uint64)} for one in range(2)]
    block.add(Batch((make_part([1, 0], 0), make_part([2, 1], 2))), ids)
    for found in (block.batch, make_block(tmp_path, 3).batch):
        assert found is not None
        assert [part.event_columns["primary_id"].tolist() for part in found.microbatches] == [
            [[7, 0], [8, 0]],
            [[7, 1]],
        ]
        assert contents(found)[0] == [0, 1, 2]


def test_nothing_of_a_large_batch_is_kept_but_its_events(tmp_path: Path) -> None:
    block = make_block(tmp_path, 2)
    large = make_part([1] * 10_000, 0)
    block.add(Batch((large.part(0, 1), large)))  # the first one is a view, as those of a unit on a GPU are
    assert block.batch is not None
    for tensor in (block.batch.microbatches[0].offsets_E1, *block.batch.microbatches[0].particle_columns.values()):
        assert tensor.untyped_storage().nbytes() < 1000


def test_an_event_is_not_in_it_twice_where_the_run_has_too_few(tmp_path: Path) -> None:
    block = make_block(tmp_path)
    block.add(Batch((make_part([1, 1], 0),)))
    block.add(Batch((make_part([1], 2), make_part([1, 1, 1], 0, epoch=1))))
    assert contents(block.batch)[0] == [0, 1, 2]


def test_other_settings_begin_another_block_and_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    block = make_block(tmp_path, 2)
    block.add(Batch((make_part([1, 1], 0),)))
    other = make_block(tmp_path, 3)
    assert other.batch is None
    assert "was made with {'events': 2, 'input': []}: another begins with {'events': 3" in caplog.text
    other.add(Batch((make_part([1, 1, 1], 50),)))
    assert ValidationBlock(tmp_path, ValidationConfig(events=3), CPU, held_out=0.1).batch is None
    assert contents(make_block(tmp_path, 3).batch)[0] == [50, 51, 52]


def test_a_damaged_block_is_told_with_the_remedy(tmp_path: Path) -> None:
    for content in (b"", b"not a zip file", None):
        if content is None:
            torch.save({"format": 99}, tmp_path / VALIDATION_FILE)
        else:
            (tmp_path / VALIDATION_FILE).write_bytes(content)
        with pytest.raises(BadInputError, match=r"validation\.pt: can't be read .*; delete it to begin another block"):
            make_block(tmp_path)


def test_a_part_that_a_killed_trainer_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "validation.part").write_bytes(b"half")
    block = make_block(tmp_path, 1)
    block.add(Batch((make_part([1], 0),)))
    assert contents(make_block(tmp_path, 1).batch)[0] == [0]


def test_a_trainer_of_an_older_attempt_leaves_the_block_alone(tmp_path: Path) -> None:
    older = begin_attempt(tmp_path)
    begin_attempt(tmp_path)
    block = ValidationBlock(tmp_path, ValidationConfig(events=2), CPU, publishing=older.publishing)
    with pytest.raises(OutdatedAttemptError):
        block.add(Batch((make_part([1, 2], 0),)))
    assert not (tmp_path / VALIDATION_FILE).exists()
