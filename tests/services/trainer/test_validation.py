"""The validation block: of a run's first events or of files, the same after a restart, and of its owner's only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from derived_columns import DERIVED, charges_of

from common.errors import BadInputError
from common.locks import OutdatedAttemptError, begin_attempt
from common.schema import EventSchema, UnitArrays
from common.unit_arrays import Array
from services.config.settings import ValidationConfig
from services.trainer import validation as module
from services.trainer.validation import INDEX_FILE, UNITS_FILE, StoredBatch, ValidationBlock, made_for
from workloads.base.batch import Batch, Microbatch
from workloads.muons.columns import MUONS

CPU = torch.device("cpu")
MADE_FOR = {"events": 40, "input": [], "held_out": 0.1}


def piece(ids: range, bounds: list[int]) -> UnitArrays:
    """Events of derived_columns.py."""
    charges = [charges_of(number) for number in ids]
    flat = np.array([one for event in charges for one in event], np.float32).reshape(-1, 1)
    column = np.arange(ids.start, ids.stop, dtype=np.int64)[:, None]
    return UnitArrays(
        offsets=np.cumsum([0, *map(len, charges)]),
        microbatch_bounds=np.array(bounds),
        event_columns={"total": 2.0 * column, "number": column, "source_file": column, "source_row": column},
        particle_columns={"hits": flat, "opens": flat > 3},
    )


def of_run(ids: range, epoch: int = 0) -> tuple[Microbatch, dict[str, Array]]:
    """Microbatch as a run has it on the device, and the ids, which the device does not get."""
    unit = piece(ids, [0, len(ids)])
    microbatch = Microbatch(
        epoch=epoch,
        unit=7,
        index=3,
        offsets_E1=torch.from_numpy(unit.offsets),
        host_offsets_E1=unit.offsets,
        event_columns={"total": torch.from_numpy(unit.event_columns["total"])},
        particle_columns={name: torch.from_numpy(column) for name, column in unit.particle_columns.items()},
        num_events=len(ids),
        num_particles=int(unit.offsets[-1]),
    )
    return microbatch, {"number": unit.event_columns["number"]}


def add(block: ValidationBlock, *parts: tuple[Microbatch, dict[str, Array]]) -> None:
    epoch = max((part.epoch for part, _ in parts), default=0)
    block.add(Batch(tuple(part for part, _ in parts)), [ids for _, ids in parts], epoch)


def numbers(block: ValidationBlock) -> list[int]:
    """The events of a block, after a look at their columns."""
    assert block.batch is not None
    parts = list(block.batch.microbatches)
    assert block.batch.num_events == block.batch.total_events == sum(part.num_events for part in parts)
    assert block.batch.num_particles == sum(part.num_particles for part in parts)
    found = []
    for part in parts:
        assert part.offsets_E1.tolist() == part.host_offsets_E1.tolist()
        assert part.event_columns.keys() == {"number", "total"}, "no sources"
        assert part.particle_columns["opens"].dtype == torch.bool
        for event, number in enumerate(part.event_columns["number"][:, 0].tolist()):
            particles = slice(*part.host_offsets_E1[event : event + 2].tolist())
            assert part.particle_columns["hits"][particles, 0].tolist() == charges_of(number)
            assert part.event_columns["total"][event, 0] == 2 * number
            found.append(number)
    return found


def first_events(run_dir: Path, events: int = 7) -> ValidationBlock:
    return ValidationBlock(run_dir, DERIVED, made_for(ValidationConfig(events=events), 0.0), CPU)


PIECES = [piece(range(12), [0, 5, 12]), piece(range(50, 58), [0, 8])]
OF_FILES = [*range(12), *range(50, 58)]


def of_files(run_dir: Path, schema: EventSchema = DERIVED, **changes: object) -> ValidationBlock:
    block = ValidationBlock(run_dir, schema, MADE_FOR | changes, CPU)
    if block.batch is None:
        block.write(iter(PIECES))
    return block


def test_it_is_the_first_events_of_the_run_and_the_same_after_a_restart(tmp_path: Path) -> None:
    block = first_events(tmp_path)
    add(block, of_run(range(2)), of_run(range(2, 3)))
    add(block)
    assert block.batch is None
    assert not list(tmp_path.iterdir())
    add(block, of_run(range(3, 3)), of_run(range(3, 5)))
    add(block, of_run(range(5, 9)))
    assert numbers(block) == [*range(7)]
    restarted = first_events(tmp_path)
    for same in (block, restarted):
        add(same, of_run(range(100, 101)))
        assert numbers(same) == [*range(7)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [INDEX_FILE, UNITS_FILE]
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_an_event_is_not_in_it_twice_where_the_run_has_too_few(tmp_path: Path) -> None:
    block = first_events(tmp_path)
    add(block, of_run(range(2)))
    add(block, of_run(range(2, 3)), of_run(range(3), epoch=1))
    assert numbers(block) == [0, 1, 2]


def test_a_small_set_that_begins_again_does_not_end_it(tmp_path: Path) -> None:
    block = first_events(tmp_path)
    for epoch in (0, 4):  # the large set had no event due
        part, ids = of_run(range(3), epoch)
        block.add(Batch((part,)), [ids], 0)
    part, ids = of_run(range(10, 19))
    block.add(Batch((replace(part, shard=1),)), [ids], 0)
    assert numbers(block) == [0, 1, 2, 10, 11, 12, 13]


def test_nothing_of_a_large_batch_is_kept_but_its_events(tmp_path: Path) -> None:
    block = first_events(tmp_path, 2)
    part, ids = of_run(range(10_000))
    add(block, (part.part(0, 1), ids))  # a view, as those of a unit on a GPU are
    for column in (*block._first[0].particle_columns.values(), block._first[0].offsets):
        assert column.base is None


def test_the_block_of_files_has_their_microbatches_and_is_read_once(tmp_path: Path) -> None:
    assert numbers(of_files(tmp_path)) == OF_FILES
    again = ValidationBlock(tmp_path, DERIVED, MADE_FOR, CPU)
    assert numbers(again) == OF_FILES
    assert again.batch is not None
    assert [part.num_events for part in again.batch.microbatches] == [5, 7, 8]


def test_counting_events_brings_none_of_them_to_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = of_files(tmp_path).batch
    monkeypatch.setattr(module, "copy_to_host", None)
    assert isinstance(batch, StoredBatch)
    assert (batch.num_events, batch.num_particles, len(batch.microbatches)) == (20, 30, 3)


def test_no_more_than_a_unit_is_held_at_a_time(tmp_path: Path) -> None:
    """The reader's units are overwritten as soon as the next one is requested."""

    def reused() -> Iterator[UnitArrays]:
        for one in PIECES:
            copies: dict[str, npt.NDArray[np.generic]] = {name: a.copy() for name, a in one.event_columns.items()}
            yield UnitArrays(one.offsets, one.microbatch_bounds, one.particle_columns, copies)
            for column in copies.values():
                column[:] = 99

    block = ValidationBlock(tmp_path, DERIVED, MADE_FOR, CPU)
    block.write(reused())
    assert numbers(block) == OF_FILES


def test_other_settings_and_other_columns_begin_another_block_and_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(first_events(tmp_path, 2), of_run(range(2)))
    other = first_events(tmp_path, 3)
    assert other.batch is None
    assert "was made with {'events': 2, 'input': []}: another begins with {'events': 3" in caplog.text
    add(other, of_run(range(50, 53)))
    assert ValidationBlock(tmp_path, DERIVED, made_for(ValidationConfig(events=3), 0.1), CPU).batch is None
    assert numbers(first_events(tmp_path, 3)) == [50, 51, 52]
    assert numbers(of_files(tmp_path)) == OF_FILES
    assert ValidationBlock(tmp_path, MUONS, MADE_FOR, CPU).batch is None


@pytest.mark.parametrize("damage", ["shorter", "other", "gone", "empty"])
def test_damaged_units_are_told_with_the_remedy(tmp_path: Path, damage: str) -> None:
    of_files(tmp_path)
    path = tmp_path / UNITS_FILE
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    {
        "shorter": lambda: path.write_bytes(content[:-64]),
        "other": lambda: path.write_bytes(content),
        "gone": path.unlink,
        "empty": lambda: path.write_bytes(b""),
    }[damage]()
    told = r"validation\.units: can't be read \(.*\); delete it and validation\.json to begin another block"
    with pytest.raises(BadInputError, match=told):
        of_files(tmp_path)
    path.unlink(missing_ok=True)
    (tmp_path / INDEX_FILE).unlink()
    assert numbers(of_files(tmp_path)) == OF_FILES


@pytest.mark.parametrize("change", [{"format": 9}, {"units": [{"events": -1, "particles": 0, "microbatches": 0}]}])
def test_a_damaged_index_is_told_with_the_remedy(tmp_path: Path, change: dict[str, object]) -> None:
    of_files(tmp_path)
    index = json.loads((tmp_path / INDEX_FILE).read_text())
    (tmp_path / INDEX_FILE).write_text(json.dumps(index | change))
    with pytest.raises(BadInputError, match=r"validation\.json: can't be read \(.*\); delete it"):
        of_files(tmp_path)


def test_a_trainer_that_is_killed_while_it_writes_begins_anew(tmp_path: Path) -> None:
    def killed() -> Iterator[UnitArrays]:
        yield PIECES[0]
        raise KeyboardInterrupt

    of_files(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        ValidationBlock(tmp_path, DERIVED, MADE_FOR | {"events": 3}, CPU).write(killed())
    (tmp_path / "validation.part").write_bytes(b"half")
    assert numbers(of_files(tmp_path, events=3)) == OF_FILES


def test_a_trainer_of_an_older_attempt_leaves_the_block_alone(tmp_path: Path) -> None:
    older = begin_attempt(tmp_path)
    block = ValidationBlock(tmp_path, DERIVED, MADE_FOR, CPU, older.publishing)

    def frozen() -> Iterator[UnitArrays]:
        yield PIECES[0]
        begin_attempt(tmp_path)

    with pytest.raises(OutdatedAttemptError):
        block.write(frozen())
    assert not (tmp_path / UNITS_FILE).exists()
    newer = begin_attempt(tmp_path)
    ValidationBlock(tmp_path, DERIVED, MADE_FOR, CPU, newer.publishing).write(iter(PIECES))
    with pytest.raises(OutdatedAttemptError):
        block.write(iter(PIECES[:1]))
    assert numbers(of_files(tmp_path)) == OF_FILES
