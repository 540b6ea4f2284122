from dataclasses import replace

import numpy as np
import pytest

from common.errors import BadInputError
from workloads.direction.simulator import plan as module
from workloads.direction.simulator.events import BRIGHT, EventKind, joined
from workloads.direction.simulator.plan import EventRows, EventsPlan, file_rows

PLAN = EventsPlan(30, 2, seed=1)


def rows(plan: EventsPlan, file_index: int = 0) -> EventRows:
    """All rows of a file."""
    pieces = list(file_rows(plan, file_index))
    return EventRows(
        np.concatenate([piece.event_id_E for piece in pieces]),
        np.concatenate([piece.added_E for piece in pieces]),
        joined([piece.events for piece in pieces]),
    )


def test_a_file_has_the_natural_events_that_it_has_without_others() -> None:
    natural, mixed = rows(PLAN), rows(replace(PLAN, num_cascades=20))
    kept = ~mixed.added_E

    assert kept.sum() == len(natural) == 15
    assert np.array_equal(mixed.events.truth.zenith_E[kept], natural.events.truth.zenith_E)
    assert np.array_equal(mixed.events.counts_E[kept], natural.events.counts_E)
    kept_P = np.repeat(kept, mixed.events.counts_E)
    assert np.array_equal(mixed.events.time_ns_P[kept_P], natural.events.time_ns_P)
    assert np.array_equal(mixed.events.sensor_P[kept_P], natural.events.sensor_P)


def test_added_cascades_stand_anywhere_in_every_file() -> None:
    plan = EventsPlan(600, 2, seed=1, num_cascades=301)
    for file_index, number in ((0, 151), (1, 150)):
        file = rows(plan, file_index)
        places = np.flatnonzero(file.added_E)

        assert len(places) == number
        assert not file.events.truth.is_track_E[places].any()
        assert (np.diff(places) == 1).mean() == pytest.approx(1 / 3, abs=0.12)
        assert places.mean() == pytest.approx(225, abs=25)


def test_event_ids_differ_between_files_and_seeds_and_fit_a_float64() -> None:
    ids = [
        rows(EventsPlan(10, 2, seed=seed, array="hex"), file_index).event_id_E
        for seed in (0, 1, 2**16 - 1)
        for file_index in (0, 1)
    ]
    flat = np.concatenate(ids)

    assert flat.dtype == np.int64
    assert len(set(flat.tolist())) == 30
    assert flat.min() >= 0
    assert flat.max() < 2**53
    assert all(np.all(np.diff(of_file) == 1) for of_file in ids)


def test_seeds_and_files_give_different_events() -> None:
    zeniths = [
        rows(EventsPlan(4, 2, seed=seed), file_index).events.truth.zenith_E[0]
        for seed in (0, 1, 2**16)
        for file_index in (0, 1)
    ]

    assert len(set(zeniths)) == 6


def test_row_groups_have_few_bright_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROW_GROUP_EVENTS", 20)
    monkeypatch.setattr(module, "MOST_BRIGHT_A_ROW_GROUP", 2)
    assert [len(piece) for piece in file_rows(EventsPlan(45, 1, seed=1), 0)] == [20, 20, 5]

    pretended = EventKind(**{**vars(BRIGHT), "brightness": 1.0})
    monkeypatch.setattr(module, "KINDS", (*module.KINDS[:2], pretended))
    monkeypatch.setattr(module, "BRIGHT", pretended)
    pieces = list(file_rows(EventsPlan(10, 1, seed=1, num_bright=9), 0))

    assert sum(len(piece) for piece in pieces) == 19
    assert max(piece.added_E.sum() for piece in pieces) <= 3
    assert len(pieces) >= 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_files": 0}, "files = 0"),
        ({"num_events": 1}, "every file needs at least one event"),
        ({"seed": -1}, "seed = -1"),
        ({"num_cascades": -1}, "cascades = -1: must not be negative"),
        ({"num_bright": -3}, "bright = -3: must not be negative"),
        ({"num_events": 70_000, "num_files": 70_000}, "files = 70000: event ids allow at most 65,536"),
        ({"num_events": 2**21, "num_cascades": 2**22}, "3,145,728 events a file: .* use more files"),
        ({"array": "km3net"}, "array = 'km3net': use one of icecube, hex"),
    ],
)
def test_a_plan_that_cannot_be_met_is_refused_with_the_fix(fields: dict[str, int], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        replace(PLAN, **fields)  # type: ignore[arg-type]
