"""The name of a plan: other settings or files, other name."""

from __future__ import annotations

import pytest

from common.config import StreamConfig
from common.plan_hash import has_settings, plan_hash, settings_hash
from common.schema import MUONS

STREAM = StreamConfig(
    block_files=3, unit_events=40, batch_events=8, max_particles=50, max_particles_per_event=20, slot_mib=0.0157
)
INVENTORY = [("a", 1), ("b", 2)]


def name(inventory: list[tuple[str, int]] = INVENTORY, seed: int = 0, **stream: object) -> str:
    return plan_hash(settings_hash(MUONS, STREAM.model_copy(update=stream), seed), inventory)


@pytest.mark.parametrize(
    "inventory",
    [[("a", 1)], [("a", 1), ("c", 2)], [("a", 1), ("b", 3)], [("b", 2), ("a", 1)], [("a", 1), ("b?file=2", 2)]],
)
def test_it_changes_with_every_file(inventory: list[tuple[str, int]]) -> None:
    assert name(inventory) != name()
    assert has_settings(name(inventory), MUONS, STREAM, 0), "the files are no settings"


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
    ],
)
def test_it_changes_with_every_setting_that_a_units_bytes_depend_on(stream: dict[str, object]) -> None:
    assert name(**stream) != name()
    assert not has_settings(name(), MUONS, STREAM.model_copy(update=stream), 0)


def test_it_changes_with_the_seed() -> None:
    assert name(seed=1) != name()
    assert not has_settings(name(), MUONS, STREAM, 1)


def test_it_does_not_depend_on_the_number_of_slots() -> None:
    assert name(slots=99) == name()
    assert len(bytes.fromhex(name())) == 16


def test_a_renewed_token_in_a_url_does_not_change_it_but_another_query_does() -> None:
    def of(query: str) -> str:
        return name([(f"https://host/a.parquet?{query}", 5)])

    assert of("token=old&file=1") == of("token=new&file=1") != of("token=new&file=2")
    assert of("file=1&X-Amz-Signature=old") == of("file=1&X-Amz-Signature=new")
