from __future__ import annotations

from pathlib import Path

from icestream.commands.outliers.merge import Merge, MergedUnit, Shard, UnitFile, UnitName, plan_merge

LARGE = 1000


def file(k: int, digest: str | None = None) -> UnitFile:
    return UnitFile(UnitName(k), Path(f"unit-{k}"), 10, digest)


def shard(generation: int, *ks: int, size_bytes: int = LARGE, digest: str = "old") -> Shard:
    units = tuple(MergedUnit(UnitName(k), 1, digest) for k in ks)
    return Shard(Path(f"shard-{ks[0]}-{ks[-1]}-g{generation}"), size_bytes, generation, units)


def sources(merge: Merge) -> list[tuple[int, str]]:
    return [(source.unit.k, source.file.path.name) for source in merge.sources]


def test_new_unit_files_are_merged_in_order_of_k() -> None:
    merge = plan_merge([file(12), file(3)], [], LARGE)
    assert sources(merge) == [(3, "unit-3"), (12, "unit-12")]
    assert merge.generation == 1


def test_a_full_shard_without_news_is_left_alone() -> None:
    merge = plan_merge([file(7)], [shard(1, 1, 2, 3)], LARGE)
    assert sources(merge) == [(7, "unit-7")]
    assert merge.generation == 2
    assert not merge.rewritten


def test_a_unit_file_whose_bytes_are_in_a_shard_is_not_merged_again() -> None:
    merge = plan_merge([file(2, "old")], [shard(1, 1, 2, 3)], LARGE)
    assert not merge.sources
    assert [one.unit.k for one in merge.merged_files] == [2]


def test_a_unit_that_was_decoded_anew_replaces_its_events_in_the_shard() -> None:
    old = shard(1, 1, 2, 3)
    merge = plan_merge([file(2, "new")], [old], LARGE)
    assert sources(merge) == [(1, old.path.name), (2, "unit-2"), (3, old.path.name)]
    assert merge.rewritten == (old,)


def test_what_a_newer_shard_holds_is_not_taken_from_an_older_one() -> None:
    older, newer = shard(1, 1, 2, 3), shard(2, 1, 2)
    merge = plan_merge([], [newer, older], LARGE)
    assert sources(merge) == [(3, older.path.name)]
    assert merge.rewritten == (older,)
    assert merge.generation == 3


def test_a_shard_of_which_nothing_is_left_is_only_removed() -> None:
    older, newer = shard(1, 1, 2), shard(2, 1, 2, 3)
    merge = plan_merge([], [older, newer], LARGE)
    assert merge.obsolete_shards == (older,)
    assert not merge.sources


def test_a_small_shard_is_merged_with_what_is_new() -> None:
    small, large = shard(1, 1, 2, size_bytes=LARGE // 3), shard(1, 3, 4)
    merge = plan_merge([file(9)], [small, large], LARGE)
    assert sources(merge) == [(1, small.path.name), (2, small.path.name), (9, "unit-9")]


def test_one_small_shard_alone_stays_and_two_are_merged() -> None:
    small = shard(1, 1, size_bytes=1)
    assert not plan_merge([], [small], LARGE).sources
    assert len(plan_merge([], [small, shard(2, 5, size_bytes=1)], LARGE).sources) == 2


def test_units_of_two_plans_are_two_units_though_they_have_one_number() -> None:
    old, a, b = UnitName(3), UnitName(3, "aa"), UnitName(3, "bb")
    files = [UnitFile(unit, Path(f"unit-3-{unit.plan}"), 10, "new") for unit in (b, old)]
    merged = Shard(Path("shard"), LARGE, 1, (MergedUnit(a, 1, "old"), MergedUnit(UnitName(4, "aa"), 1, "old")))
    merge = plan_merge(files, [merged], LARGE)
    assert [source.unit for source in merge.sources] == [old, b]
    assert not merge.rewritten
