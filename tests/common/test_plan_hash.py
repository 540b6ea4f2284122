"""The name of a plan: other settings, other plan hash; other files, other inventory digest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.config import SourceConfig, StreamConfig
from common.plan_hash import complete_digest, files_digest, inventory_digest, plan_hash
from workloads.direction.columns import DIRECTION
from workloads.muons.columns import MUONS

STREAM = StreamConfig(
    block_files=3, unit_events=40, batch_events=8, max_particles=50, max_particles_per_event=20, slot_mib=0.0157
)
INVENTORY = [("a", 1), ("b", 2)]


def name(seed: int = 0, **stream: object) -> str:
    return plan_hash(MUONS, STREAM.model_copy(update=stream), seed)


@pytest.mark.parametrize(
    "files",
    [[("a", 1)], [("a", 1), ("c", 2)], [("a", 1), ("b", 3)], [("b", 2), ("a", 1)], [("a", 1), ("b?file=2", 2)]],
)
def test_the_digest_changes_with_every_file(files: list[tuple[str, int]]) -> None:
    assert files_digest(files) != files_digest(INVENTORY)


def test_the_digest_of_an_inventory_is_that_of_all_its_ranges_in_order() -> None:
    a, b = files_digest(INVENTORY[:1]), files_digest(INVENTORY[1:])
    digests = ["", inventory_digest("", a), inventory_digest("", b)]
    digests += [inventory_digest(digests[1], b), inventory_digest(digests[2], a), inventory_digest(digests[1], a)]
    digests += [complete_digest(digests[3])]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "stream",
    [
        {"block_files": 4},
        {"unit_events": 41},
        {"batch_events": 9},
        {"max_particles": 51},
        {"max_particles_per_event": 21},
        {"drop_empty": True},
        {"shuffle": False},
        {"slot_mib": 0.02},
        {"held_out": 0.1},
        {"max_squared_particles": 900},
        {"length_buckets": 2},
        {"shards": 2},
    ],
)
def test_it_changes_with_every_setting_that_a_units_bytes_depend_on(stream: dict[str, object]) -> None:
    assert name(**stream) != name()


def test_it_changes_with_the_seed() -> None:
    assert name(seed=1) != name()


def test_it_does_not_depend_on_the_number_of_slots() -> None:
    assert name(slots=99) == name()
    assert len(bytes.fromhex(name())) == 16


def test_a_renewed_token_in_a_url_does_not_change_the_digest_but_another_query_does() -> None:
    def of(query: str) -> str:
        return files_digest([(f"https://host/a.parquet?{query}", 5)])

    assert of("token=old&file=1") == of("token=new&file=1") != of("token=new&file=2")
    assert of("file=1&X-Amz-Signature=old") == of("file=1&X-Amz-Signature=new")


@pytest.mark.parametrize(
    ("source", "plan"),
    [
        (SourceConfig(), "bcbfe9826398d482cb3c54c01c59381e"),
        (SourceConfig(depth_kind="slant", nulls="empty"), "712c2daad9ed87b6f7eff6fdad048e7b"),
        (
            SourceConfig(fields={"primary": ("energy_gev", "zenith_rad", "mass_a", "time_s", "depth_m")}),
            "493d93c9d13996d63e94b30c70a59af8",
        ),
    ],
)
def test_the_plans_of_muons_are_those_of_plan_version_4_so_that_runs_of_older_versions_go_on(
    source: SourceConfig, plan: str
) -> None:
    stream = StreamConfig(
        batch_events=2048, block_files=64, unit_events=65536, slot_mib=16.0, slots=8, max_particles=1_000_000
    )
    assert plan_hash(MUONS.stored_as(source), stream, 1) == plan


def test_it_changes_with_every_rule_and_column_of_the_files() -> None:
    def of(**changes: object) -> str:
        return plan_hash(replace(MUONS, **changes), STREAM, 0)  # type: ignore[arg-type]

    bounded = (*MUONS.rules[:-1], replace(MUONS.rules[-1], maximum=1.0))
    renamed = (*MUONS.source_columns[:-1], replace(MUONS.source_columns[-1], name="event.muons"))
    plans = [
        of(),
        of(rules=MUONS.rules[1:]),
        of(rules=bounded),
        of(source_columns=renamed),
        of(source=SourceConfig(nulls="empty")),
        of(source=SourceConfig(max_invalid_share=0.0)),
    ]
    assert len(set(plans)) == len(plans)


def test_derived_columns_are_part_of_the_plan() -> None:
    fewer = replace(
        DIRECTION,
        columns=tuple(one for one in DIRECTION.columns if one.name != "opens_sensor"),
        derived=("source_direction",),
    )
    assert plan_hash(fewer, STREAM, 0) != plan_hash(DIRECTION, STREAM, 0)


def test_all_shards_have_the_plan_hash_of_the_run() -> None:
    stream = STREAM.model_copy(update={"shards": 2})
    hashes = {plan_hash(MUONS, one, 0) for one in (stream, stream.of_shard(0), stream.of_shard(1))}
    assert hashes == {name(shards=2)}


def test_the_ids_are_part_of_the_plan_only_if_events_are_held_out_by_them() -> None:
    without_ids = replace(MUONS, identity=None)
    assert plan_hash(without_ids, STREAM, 0) == plan_hash(MUONS, STREAM, 0)
    some = STREAM.model_copy(update={"held_out": 0.1})
    assert plan_hash(without_ids, some, 0) != plan_hash(MUONS, some, 0)
