"""The inventory that grows range by range, and trainers that wait for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common import messages as m
from common.config import StreamConfig
from common.plan import Blocks, SourceFile
from services.fetcher.inventory.claims import PendingTrainers
from services.fetcher.inventory.inventory import Inventory
from services.fetcher.inventory.ledger import LEDGER_FILE, CommittedPlace, Ledger
from services.fetcher.inventory.ranges import make_ranges

STREAM = StreamConfig(block_files=3)
RANGES = make_ranges(["a/{range}"], "0:3:1")

Open = Callable[..., Inventory]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    ledgers = []

    def open_inventory(num_ranges: int = 4, epochs: int = 2, folder: str = "") -> Inventory:
        (tmp_path / folder).mkdir(exist_ok=True)
        ledgers.append(Ledger(tmp_path / folder / LEDGER_FILE))
        blocks = Blocks.of_ranges(num_ranges, STREAM, 1, epochs)
        return Inventory(ledgers[-1], RANGES[:num_ranges], blocks)

    yield open_inventory
    for ledger in ledgers:
        ledger.close()


def files(range_index: int, num_files: int) -> list[SourceFile]:
    return [SourceFile(f"https://host/{range_index}/{i}", 10 + i) for i in range(num_files)]


SIZES = (7, 0, 4, 5)


def fill(inventory: Inventory, num_ranges: int = 4) -> None:
    for index in range(inventory.num_known, num_ranges):
        inventory.freeze(files(index, SIZES[index]), "" if SIZES[index] else "empty")


def test_blocks_hold_files_of_one_range_only_and_all_of_them_once_an_epoch(opened: Open) -> None:
    inventory = opened()
    fill(inventory)
    blocks = inventory.blocks
    assert blocks.end == 2 * (3 + 0 + 2 + 2)
    for epoch in range(2):
        seen = []
        for block in range(epoch * 7, epoch * 7 + 7):
            assert blocks.epoch_of(block) == epoch
            names = {inventory.source(file).url.rsplit("/", 1)[0] for file in blocks.files(block)}
            assert names == {f"https://host/{blocks.range_of(block)}"}
            seen += blocks.files(block)
        assert sorted(seen) == list(range(16))
    assert [blocks.range_of(block) for block in range(7)] == [0, 0, 0, 2, 2, 3, 3]
    assert blocks.files(0) != blocks.files(7), "epochs are shuffled anew"


def test_what_is_known_does_not_change_when_the_next_range_comes(opened: Open) -> None:
    inventory = opened()
    blocks = inventory.blocks
    assert not blocks.is_known(0)
    fill(inventory, 1)
    before = [blocks.files(block) for block in range(3)]
    source = inventory.source_of(2)
    assert not blocks.is_known(3)
    assert blocks.end is None
    fill(inventory)
    assert [blocks.files(block) for block in range(3)] == before
    assert inventory.source_of(2) == source
    assert blocks.is_known(13)
    assert not blocks.is_known(14)


def test_a_restart_finds_the_ranges_that_were_listed(opened: Open) -> None:
    inventory = opened()
    fill(inventory, 3)
    again = opened()
    assert (again.num_known, again.num_files, again.next_range) == (3, 11, RANGES[3])
    assert list(again.staged_bytes) == list(inventory.staged_bytes)
    assert again.source_of(4) == inventory.source_of(4)


def test_more_ranges_may_follow_in_the_first_epoch_but_not_later(opened: Open) -> None:
    short = opened(num_ranges=3)
    fill(short, 3)
    in_first, in_second = short.source_of(4), short.source_of(5)
    assert short.has(in_first)
    assert short.has(in_second)
    longer = opened(num_ranges=4)
    assert longer.has(in_first), "the same data up to there"
    assert not longer.has(in_second), "its first epoch was shorter"


def test_another_file_in_a_range_is_another_inventory_from_there_on(opened: Open) -> None:
    inventory, other = opened(), opened(folder="other")
    fill(inventory)
    fill(other, 2)
    other.freeze(files(2, 5))
    assert other.has(inventory.source_of(2))
    assert not other.has(inventory.source_of(3))
    assert not other.knows(inventory.source_of(5))


@pytest.mark.parametrize(
    ("block", "place"), [(0, (0, 0)), (2, (0, 0)), (3, (0, 2)), (5, (0, 3)), (7, (1, 0)), (13, (1, 3)), (14, (1, 4))]
)
def test_the_place_is_told_in_ranges(opened: Open, block: int, place: tuple[int, int]) -> None:
    inventory = opened()
    fill(inventory)
    assert inventory.place_before(block) == CommittedPlace(*place)


def attach(source: m.Source) -> m.Attach:
    return m.Attach(0, 1, "ab" * 16, m.Cursor(), source=source)


def test_a_new_trainer_need_not_wait(opened: Open) -> None:
    claims = PendingTrainers(opened())
    assert claims.pass_on("t", attach(m.Source())) == [attach(m.Source())]
    assert claims.pass_on("t", m.Want(1)) == [m.Want(1)]


def test_a_trainer_waits_with_all_that_it_says_until_its_ranges_are_known(opened: Open) -> None:
    known = opened(folder="known")
    fill(known)
    inventory = opened()
    claims = PendingTrainers(inventory)
    claim = attach(known.source_of(4))
    assert claims.pass_on("t", claim) == []
    assert claims.pass_on("t", m.Want(2)) == []
    assert claims.pass_on("decoder", m.Hello(1)) == [m.Hello(1)]
    assert claims.ranges_wanted == 3
    fill(inventory, 2)
    assert claims.settle() == ([], [])
    fill(inventory, 3)
    assert claims.settle() == ([("t", claim), ("t", m.Want(2))], [])
    assert claims.settle() == ([], [])
    assert claims.ranges_wanted == 0
    assert claims.pass_on("t", m.Want(1)) == [m.Want(1)]


def test_a_trainer_that_talks_without_end_while_it_waits_takes_little_memory(opened: Open) -> None:
    known = opened(folder="known")
    fill(known)
    inventory = opened()
    claims = PendingTrainers(inventory)
    claim = attach(known.source_of(4))
    claims.pass_on("t", claim)
    for _ in range(5000):
        claims.pass_on("t", m.Want(1))
    fill(inventory)
    passed, refused = claims.settle()
    assert refused == []
    assert passed[0] == ("t", claim)
    assert 2 < len(passed) < 100


def test_a_trainer_of_other_files_is_refused_and_may_begin_anew(opened: Open) -> None:
    known = opened(folder="known")
    known.freeze(files(9, 7))
    inventory = opened()
    claims = PendingTrainers(inventory)
    claims.pass_on("t", attach(known.source_of(0)))
    claims.pass_on("t", m.Want(2))
    fill(inventory, 1)
    assert claims.settle() == ([], ["t"])
    assert claims.pass_on("t", attach(m.Source())) == [attach(m.Source())]


def test_a_trainer_that_claims_what_no_inventory_has_is_refused(opened: Open) -> None:
    inventory = opened()
    fill(inventory)
    claims = PendingTrainers(inventory)
    assert claims.pass_on("t", attach(m.Source(2**40, "ab"))) == []
    assert claims.settle() == ([], ["t"])


def test_a_trainer_that_dies_while_it_waits_is_forgotten(opened: Open) -> None:
    claims = PendingTrainers(opened())
    claims.pass_on("t", attach(m.Source(1, "ab")))
    claims.forget("t")
    assert claims.ranges_wanted == 0
    assert claims.settle() == ([], [])


def test_ranges_of_random_sizes_give_every_file_once_an_epoch() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        sizes = [rng.choice((0, 1, 2, 5, 9)) for _ in range(rng.randint(1, 6))]
        epochs = rng.randint(1, 3)
        blocks = Blocks.of_ranges(len(sizes), STREAM, seed, epochs)
        for size in sizes:
            blocks.append(size)
        assert blocks.end == epochs * sum(-(-size // 3) for size in sizes)
        for epoch in range(epochs):
            numbers = range(epoch * blocks.per_epoch, (epoch + 1) * blocks.per_epoch)
            assert sorted(file for block in numbers for file in blocks.files(block)) == list(range(sum(sizes)))
