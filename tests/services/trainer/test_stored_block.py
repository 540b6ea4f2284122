"""Validation events that were read from files: stored in the run directory, and brought to the device one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from derived_columns import DERIVED, charges_of

from common.attempt import OutdatedAttemptError, begin_attempt
from common.errors import BadInputError
from common.schema import EventSchema
from common.unit_arrays import UnitArrays
from services.trainer.telemetry import stored_block as module
from services.trainer.telemetry.stored_block import INDEX_FILE, UNITS_FILE, StoredBatch, stored_block
from workloads.muons.columns import MUONS

CPU = torch.device("cpu")
MADE_FOR = {"events": 40, "input": [], "held_out": 0.1}


def piece(ids: range, bounds: list[int]) -> UnitArrays:
    """Events of derived_columns.py."""
    charges = [charges_of(number) for number in ids]
    flat = np.array([one for event in charges for one in event], np.float32)[:, None]
    column = np.arange(ids.start, ids.stop, dtype=np.int64)[:, None]
    return UnitArrays(
        offsets=np.cumsum([0, *map(len, charges)]),
        microbatch_bounds=np.array(bounds),
        event_columns={"total": 2.0 * column, "number": column, "source_file": column, "source_row": column},
        particle_columns={"hits": flat, "opens": flat > 3},
    )


PIECES = [piece(range(12), [0, 5, 12]), piece(range(50, 58), [0, 8])]


def nothing() -> Iterator[UnitArrays]:
    raise AssertionError("it is read once")


def block_of(run_dir: Path, *, schema: EventSchema = DERIVED) -> StoredBatch:
    return stored_block(run_dir, schema, MADE_FOR, CPU, lambda: iter(PIECES))


def assert_same(block: StoredBatch) -> None:
    assert [part.num_events for part in block.microbatches] == [5, 7, 8]
    assert (block.num_events, block.total_events) == (20, 20)
    assert block.num_particles == sum(part.num_particles for part in block.microbatches)
    numbers = []
    for part in block.microbatches:
        assert part.offsets_E1.tolist() == part.host_offsets_E1.tolist()
        assert part.event_columns.keys() == {"number", "total"}, "no sources"
        for event, number in enumerate(part.event_columns["number"][:, 0].tolist()):
            mine = slice(*part.host_offsets_E1[event : event + 2].tolist())
            assert part.particle_columns["hits"][mine, 0].tolist() == charges_of(number)
            assert part.event_columns["total"][event, 0] == 2 * number
            numbers.append(number)
    assert numbers == [*range(12), *range(50, 58)]
    assert block.microbatches[0].particle_columns["opens"].dtype == torch.bool


def test_the_block_is_that_of_the_files_and_the_same_after_a_restart(tmp_path: Path) -> None:
    block = block_of(tmp_path)
    assert_same(block)
    assert_same(stored_block(tmp_path, DERIVED, MADE_FOR, CPU, nothing))
    assert sorted(path.name for path in tmp_path.iterdir()) == [INDEX_FILE, UNITS_FILE]
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    assert block.microbatches[-1].num_events == 8
    assert [part.num_events for part in block.microbatches[:2]] == [5, 7]
    with pytest.raises(IndexError):
        block.microbatches[3]


def test_counting_events_brings_none_of_them_to_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = block_of(tmp_path)
    monkeypatch.setattr(module, "copy_to_host", None)
    assert (block.num_events, block.num_particles, len(block.microbatches)) == (20, 30, 3)


def test_no_more_than_a_unit_is_held_at_a_time(tmp_path: Path) -> None:
    """The reader's units are overwritten as soon as the next one is requested."""

    def reused() -> Iterator[UnitArrays]:
        for one in PIECES:
            copies: dict[str, npt.NDArray[np.generic]] = {name: a.copy() for name, a in one.event_columns.items()}
            yield UnitArrays(one.offsets, one.microbatch_bounds, one.particle_columns, copies)
            for column in copies.values():
                column[:] = 99

    assert_same(stored_block(tmp_path, DERIVED, MADE_FOR, CPU, reused))


def test_other_settings_and_other_columns_begin_another_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    block_of(tmp_path)
    other = stored_block(tmp_path, DERIVED, MADE_FOR | {"held_out": 0.2}, CPU, lambda: iter(PIECES[1:]))
    assert other.num_events == 8
    assert "'held_out': 0.1}: another begins with" in caplog.text
    with pytest.raises(KeyError):  # these pieces have no muons: they were requested anew
        stored_block(tmp_path, MUONS, MADE_FOR | {"held_out": 0.2}, CPU, lambda: iter(PIECES))
    assert_same(block_of(tmp_path))


@pytest.mark.parametrize("damage", ["shorter", "other", "gone", "empty"])
def test_damaged_units_are_told_with_the_remedy(tmp_path: Path, damage: str) -> None:
    block_of(tmp_path)
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
        stored_block(tmp_path, DERIVED, MADE_FOR, CPU, nothing)
    path.unlink(missing_ok=True)
    (tmp_path / INDEX_FILE).unlink()
    assert_same(block_of(tmp_path))


@pytest.mark.parametrize("change", [{"format": 9}, {"units": [{"events": -1, "particles": 0, "microbatches": 0}]}])
def test_a_damaged_index_is_told_with_the_remedy(tmp_path: Path, change: dict[str, object]) -> None:
    block_of(tmp_path)
    index = json.loads((tmp_path / INDEX_FILE).read_text())
    (tmp_path / INDEX_FILE).write_text(json.dumps(index | change))
    with pytest.raises(BadInputError, match=r"validation\.json: can't be read \(.*\); delete it"):
        stored_block(tmp_path, DERIVED, MADE_FOR, CPU, nothing)


def test_a_trainer_that_is_killed_while_it_writes_begins_anew(tmp_path: Path) -> None:
    def killed() -> Iterator[UnitArrays]:
        yield PIECES[0]
        raise KeyboardInterrupt

    block_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        stored_block(tmp_path, DERIVED, MADE_FOR | {"events": 3}, CPU, killed)
    (tmp_path / "validation.part").write_bytes(b"half")
    assert_same(stored_block(tmp_path, DERIVED, MADE_FOR | {"events": 3}, CPU, lambda: iter(PIECES)))


def test_a_trainer_of_an_older_attempt_leaves_the_block_alone(tmp_path: Path) -> None:
    older = begin_attempt(tmp_path)

    def frozen() -> Iterator[UnitArrays]:
        yield PIECES[0]
        begin_attempt(tmp_path)

    with pytest.raises(OutdatedAttemptError):
        stored_block(tmp_path, DERIVED, MADE_FOR, CPU, frozen, older.publishing)
    assert not (tmp_path / UNITS_FILE).exists()
    newer = begin_attempt(tmp_path)
    assert_same(stored_block(tmp_path, DERIVED, MADE_FOR, CPU, lambda: iter(PIECES), newer.publishing))
    with pytest.raises(OutdatedAttemptError):
        stored_block(tmp_path, DERIVED, MADE_FOR | {"events": 3}, CPU, nothing, older.publishing)
    assert_same(stored_block(tmp_path, DERIVED, MADE_FOR, CPU, nothing, newer.publishing))
