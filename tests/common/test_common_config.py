"""Settings of the stream that can't be, and when an event is an outlier."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from common.config import StreamConfig


@pytest.mark.parametrize(
    ("settings", "outlier_above"),
    [
        ({}, 100),
        ({"max_particles_per_event": 30}, 30),
        ({"max_squared_particles": 99}, 9),
        ({"max_squared_particles": 100}, 10),
        ({"max_squared_particles": 10**6}, 100),
        ({"max_squared_particles": 100, "max_particles_per_event": 7}, 7),
    ],
)
def test_an_event_that_alone_exceeds_a_limit_of_a_microbatch_is_an_outlier(
    settings: dict[str, int], outlier_above: int
) -> None:
    assert StreamConfig(max_particles=100, **settings).outlier_above == outlier_above


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"weights": (1, 0)}, "greater than 0"),
        ({"weights": 5}, "valid tuple"),
        ({"weights": (1, 1e300)}, "less than or equal"),
        ({"weights": (1, 1), "shards": 4}, "each of the 2 sets of stream.weights is a shard"),
        ({"weights": (1, 1), "batch_events": 1}, "at most stream.batch_events"),
        ({"max_particles": 100, "max_particles_per_event": 101}, r"event = 101 is larger than stream\.max_p.* = 100"),
        ({"max_squared_particles": 100, "max_particles_per_event": 11}, r"_squared_particles = 100.*lower .* to 10 or"),
        ({"slot_mib": 0.001}, r"stream\.slot_mib = 0\.001 is smaller than one page"),
        ({"length_buckets": 2, "shuffle": False}, r"length_buckets = 2 sorts events, but stream\.shuffle = false"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        StreamConfig.model_validate(settings)


def test_sets_keep_their_proportion_although_microbatches_are_whole() -> None:
    stream = StreamConfig(weights=(3, 1, 0.5), batch_events=200)
    assert (stream.shards, [stream.events_of_shard(shard) for shard in range(3)]) == (3, [133, 44, 22])
    trained, sizes = [0, 0, 0], [stream.of_shard(shard).microbatch_events for shard in range(3)]
    for _ in range(50):
        due = stream.due_of_shards(trained)
        assert sum(due) >= 200
        trained = [num - -more // size * size for num, more, size in zip(trained, due, sizes, strict=True)]
    wanted = [sum(trained) * weight / 4.5 for weight in stream.weights]
    assert all(abs(num - want) <= size for num, want, size in zip(trained, wanted, sizes, strict=True))
    assert StreamConfig(shards=3, batch_events=200).due_of_shards(trained) == [67, 67, 67]
    for batch_events in (3, 5, 65):
        assert sum(StreamConfig(weights=(1, 1), batch_events=batch_events).due_of_shards([0, 0])) == batch_events


def test_the_shards_of_sets_are_not_stored_as_they_would_outlive_the_weights() -> None:
    stored = StreamConfig(weights=(3, 1)).model_dump()
    assert StreamConfig(**stored) == StreamConfig(weights=(3, 1))
    assert StreamConfig(**stored | {"weights": (1, 1, 1)}).shards == 3
    assert StreamConfig(**stored | {"weights": ()}).shards == 1
