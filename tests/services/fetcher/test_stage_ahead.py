from __future__ import annotations

import random

import pytest

from common.config import StreamConfig
from common.errors import BadInputError
from common.plan import Blocks, Footer, StagedFile
from services.fetcher.staging.stage_ahead import StageAhead

GIB = 1 << 30


def make(num_files: int, *, budget: int, ahead: int = 1, block_files: int = 2, epochs: int = 1) -> StageAhead:
    """Every file takes 10 bytes."""
    blocks = Blocks(num_files, StreamConfig(block_files=block_files, shuffle=False), 0, epochs)
    return StageAhead(blocks, [10] * num_files, budget_bytes=budget, blocks_ahead=ahead)


def staged(file: int) -> StagedFile:
    return StagedFile(file, f"f{file}", Footer(()))


@pytest.mark.parametrize("seed", range(300))
def test_a_random_schedule_never_exceeds_the_budget_and_gives_each_block_once_in_order(seed: int) -> None:
    rng = random.Random(seed)
    block_files = rng.randint(1, 3)
    num_files = rng.randint(1, 12)
    epochs = rng.randint(1, 3)
    blocks = Blocks(num_files, StreamConfig(block_files=block_files, shuffle=rng.random() < 0.5), seed, epochs)
    sizes = [rng.choice([0, 5, 10]) for _ in range(num_files)]
    budget = rng.randint(20 * block_files, 60 * block_files)
    ahead = StageAhead(blocks, sizes, budget_bytes=budget, blocks_ahead=rng.randint(1, 3))
    on_their_way: list[int] = []
    on_disk: set[int] = set()
    taken: list[int] = []
    trained = 0
    for _ in range(3000):
        if ahead.ended:
            break
        match rng.randint(0, 40):
            case 0:  # the trainer went back to its checkpoint
                del taken[rng.randint(trained, len(taken)) :]
                known = [file for file in sorted(on_disk) if rng.random() < 0.9]
                on_disk -= {*ahead.restart(len(taken), known), *(on_disk - {*known})}
                trained = min(trained, len(taken))
            case n if n <= 10:
                begun = ahead.begin(trained)
                assert on_disk >= set(begun.give_up), "only what is there is given up"
                on_disk -= set(begun.give_up)
                on_their_way += begun.stage
                assert len(set(on_their_way)) == len(on_their_way), "no file is fetched twice at a time"
            case n if n <= 20 and on_their_way:
                file = on_their_way.pop(rng.randrange(len(on_their_way)))
                if ahead.add(staged(file)):
                    on_disk.add(file)
                else:
                    on_disk.discard(file)
            case n if n <= 30:
                block = ahead.take_block()
                if block is not None:
                    number, files = block
                    taken.append(number)
                    assert [file.file for file in files] == blocks.files(number)
                    assert {file.file for file in files} <= on_disk
            case n if n <= 40 and taken:
                trained = rng.randint(trained, len(taken))
                freed = set(ahead.evict(trained))
                assert on_disk >= freed
                on_disk -= freed
        ahead.validate()
        assert sum(sizes[file] for file in on_disk | set(on_their_way)) <= ahead.bytes_held <= budget
    assert taken == list(range(blocks.end or 0))
    ahead.evict(len(taken))
    assert ahead.bytes_held == 0, "nothing is kept once no epoch follows"


def test_blocks_are_begun_only_so_far_ahead() -> None:
    ahead = make(10, budget=GIB, ahead=1)
    assert ahead.begin(0).stage == [0, 1, 2, 3]
    assert ahead.begin(0).stage == []
    assert ahead.begin(1).stage == [4, 5]


def test_a_block_is_complete_once_all_its_files_are_there() -> None:
    ahead = make(4, budget=GIB)
    ahead.begin(0)
    ahead.add(staged(1))
    assert ahead.take_block() is None
    ahead.add(staged(0))
    assert ahead.take_block() == (0, [staged(0), staged(1)])
    assert ahead.take_block() is None


def test_a_later_block_that_is_complete_waits_for_its_turn() -> None:
    ahead = make(4, budget=GIB)
    for file in ahead.begin(0).stage[2:]:
        ahead.add(staged(file))
    assert ahead.take_block() is None


def test_the_budget_stops_the_staging_until_something_is_evicted() -> None:
    ahead = make(6, budget=40, ahead=5)
    assert ahead.begin(0).stage == [0, 1, 2, 3]
    assert ahead.out_of_budget
    assert not ahead.waits_for_eviction, "files are on their way"
    for file in range(4):
        ahead.add(staged(file))
    ahead.take_block()
    ahead.take_block()
    ahead.begin(1)
    assert ahead.waits_for_eviction
    assert ahead.evict(1) == [0, 1]
    assert ahead.begin(1).stage == [4, 5]
    assert not ahead.waits_for_eviction


def test_a_block_that_alone_exceeds_the_budget_is_an_error_that_names_both_settings() -> None:
    with pytest.raises(BadInputError, match=r"fetcher\.disk_budget_gib.*stream\.block_files"):
        make(4, budget=19).begin(0)


def test_a_file_that_the_next_epoch_needs_is_kept() -> None:
    ahead = make(2, budget=20, ahead=1, epochs=2)
    for file in ahead.begin(0).stage:
        ahead.add(staged(file))
    assert ahead.take_block() == (0, [staged(0), staged(1)])
    assert ahead.begin(0).stage == [], "they are there"
    assert ahead.evict(1) == []
    assert ahead.take_block() == (1, [staged(0), staged(1)])
    assert ahead.evict(2) == [0, 1]
    assert ahead.ended


def test_a_file_that_nobody_needs_any_more_is_not_kept_when_it_arrives() -> None:
    ahead = make(4, budget=GIB)
    ahead.begin(0)
    ahead.evict(1)
    assert not ahead.add(staged(0))
    assert ahead.add(staged(2))


def run_through(ahead: StageAhead, fetches: list[int]) -> None:
    """Train block after block, counting the files that are not on disk when they are staged."""
    on_disk: set[int] = set()
    block = 0
    while not ahead.ended:
        begun = ahead.begin(block)
        on_disk -= set(begun.give_up)
        fetches += [file for file in begun.stage if file not in on_disk]
        on_disk |= set(begun.stage)
        for file in begun.stage:
            ahead.add(staged(file))
        while ahead.take_block() is not None:
            block += 1
        on_disk -= set(ahead.evict(block))
        ahead.validate()


def test_files_that_all_fit_are_fetched_once_for_all_epochs() -> None:
    for budget, expected in ((1000, 100), (10, 500)):
        fetches: list[int] = []
        run_through(make(100, budget=budget, block_files=1, epochs=5), fetches)
        assert len(fetches) == expected


def test_of_files_that_do_not_fit_as_many_as_can_be_are_fetched_once() -> None:
    """Ten of twenty files fit, in a fixed order: half of them are there in each epoch after the first."""
    fetches: list[int] = []
    run_through(make(20, budget=100, block_files=1, epochs=5), fetches)
    assert 20 + 4 * 10 <= len(fetches) <= 20 + 4 * 12


def test_a_file_that_is_needed_last_is_given_up_first() -> None:
    ahead = make(4, budget=30, block_files=1, epochs=2)
    for file in ahead.begin(0).stage:
        ahead.add(staged(file))
    ahead.take_block()
    ahead.take_block()
    assert ahead.evict(2) == []
    assert ahead.bytes_kept == 20
    begun = ahead.begin(1)
    assert (begun.give_up, begun.stage) == ([], [2])
    ahead.add(staged(2))
    begun = ahead.begin(2)
    assert (begun.give_up, begun.stage) == ([1], [3]), "file 0 comes again before file 1"


def test_nothing_is_given_up_for_a_block_that_would_not_fit_all_the_same() -> None:
    ahead = make(4, budget=20, ahead=3, block_files=1, epochs=2)
    for file in ahead.begin(0).stage:
        ahead.add(staged(file))
    ahead.take_block()
    assert ahead.evict(1) == []
    assert ahead.begin(1).give_up == [0]
    assert ahead.out_of_budget


def test_a_kept_file_is_staged_again_so_that_the_cache_finds_out_whether_it_is_sound() -> None:
    ahead = make(3, budget=1000, ahead=1, block_files=1, epochs=2)
    for block in range(3):
        for file in ahead.begin(block).stage:
            ahead.add(staged(file))
        ahead.take_block()
        ahead.evict(block + 1)
    assert ahead.bytes_kept == 20, "file 0 was begun again"
    assert ahead.begin(3).stage == [1]


@pytest.mark.parametrize("bad", [StagedFile(0, "f0", None, reason="bad"), StagedFile(0, "", Footer(()))])
def test_a_file_that_is_bad_or_gone_is_not_kept(bad: StagedFile) -> None:
    ahead = make(4, budget=1000, ahead=1, block_files=1, epochs=2)
    ahead.begin(0)
    ahead.add(bad)
    ahead.take_block()
    assert ahead.evict(1) == [0]


def test_a_file_that_is_used_in_place_is_not_kept() -> None:
    blocks = Blocks(4, StreamConfig(block_files=1, shuffle=False), 0, 2)
    ahead = StageAhead(blocks, [0] * 4, budget_bytes=10, blocks_ahead=1)
    ahead.begin(0)
    ahead.add(staged(0))
    ahead.take_block()
    assert ahead.evict(1) == [0]


def test_a_restart_keeps_of_the_cache_what_is_needed_soonest_and_fits() -> None:
    ahead = make(6, budget=30, block_files=1)
    assert ahead.restart(2, in_cache=[0, 1, 5, 4, 3, 2]) == [5, 0, 1], "0 and 1 are not needed any more"
    assert ahead.bytes_held == ahead.bytes_kept == 30
    begun = ahead.begin(2)
    assert (begun.give_up, begun.stage) == ([], [2, 3])


def test_staging_waits_for_ranges_that_are_not_listed_yet() -> None:
    blocks = Blocks.of_ranges(2, StreamConfig(block_files=1, shuffle=False), 0, 1)
    ahead = StageAhead(blocks, [10] * 4, budget_bytes=1000, blocks_ahead=5)
    assert ahead.begin(0).stage == []
    blocks.append(2)
    assert ahead.begin(0).stage == [0, 1]
    assert not ahead.is_full
    blocks.append(2)
    assert ahead.begin(0).stage == [2, 3]


def test_a_restart_begins_anew_at_its_block() -> None:
    ahead = make(6, budget=40, ahead=1)
    for file in ahead.begin(0).stage:
        ahead.add(staged(file))
    ahead.take_block()
    ahead.restart(1)
    ahead.validate()
    assert ahead.bytes_held == 0
    assert ahead.begin(1).stage == [2, 3, 4, 5]
    for file in (2, 3):
        ahead.add(staged(file))
    assert ahead.take_block() == (1, [staged(2), staged(3)])


def test_a_file_on_its_way_during_a_restart_is_not_fetched_twice() -> None:
    ahead = make(4, budget=GIB)
    ahead.begin(0)
    ahead.restart(0)
    assert ahead.begin(0).stage == []
    assert ahead.add(staged(0))


def test_staging_is_full_when_the_blocks_ahead_or_the_budget_are_used_up_and_nothing_is_on_its_way() -> None:
    for ahead in (make(8, budget=1000, ahead=1), make(8, budget=40, ahead=5)):
        files = ahead.begin(0).stage
        assert not ahead.is_full, "files are on their way"
        for file in files:
            ahead.add(staged(file))
        assert ahead.is_full


def test_staging_is_not_full_once_the_last_block_was_begun() -> None:
    ahead = make(4, budget=1000, ahead=5)
    for file in ahead.begin(0).stage:
        ahead.add(staged(file))
    assert not ahead.is_full


def test_the_part_that_is_ahead_counts_blocks_given_out_beyond_the_current_one() -> None:
    ahead = make(20, budget=1000, ahead=4)
    for file in ahead.begin(0).stage[:6]:  # three blocks of five
        ahead.add(staged(file))
    assert ahead.part_ahead(0) == 0.0
    for _ in range(3):
        ahead.take_block()
    assert ahead.part_ahead(0) == 2 / 4
    assert ahead.part_ahead(2) == 0.0
    assert ahead.part_ahead(3) == 0.0
