"""`inspect` of columns of any fixed width."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from column_files import Form, any_forms, make, write
from derived_columns import DERIVED, write_derived
from hypothesis import given, settings
from hypothesis import strategies as st

from common.schema import Column
from icestream.commands.inspect.describe import as_json, describe
from icestream.commands.inspect.text import lines


@settings(deadline=None, max_examples=60)
@given(any_forms(), st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 1 << 30), st.booleans())
def test_counts_ranges_and_first_events_are_those_of_the_columns(
    tmp_path_factory: pytest.TempPathFactory, forms: list[Form], counts: list[int], seed: int, nulls: bool
) -> None:
    made = make(forms, counts, seed, nulls=nulls)
    path = write(tmp_path_factory.mktemp("f") / "f.parquet", made, rows_per_group=7, extra=True)
    found = describe(path, "f", made.workload, num_events=1)
    lines(found), as_json([found])
    present = ~made.null_events
    kept = ~made.null_particles
    assert (found.problems, found.events, found.null_events) == ([], len(counts), made.null_events.sum())
    assert (found.particles, found.dropped) == (kept.sum(), made.null_particles.sum())
    ranges = {one.name: (one.least, one.largest) for one in found.ranges}
    for one in forms:
        values = made.stored[one.column.name].astype(one.column.dtype)[present if one.column.per == "event" else kept]
        for i, name in enumerate(one.column.fields):
            expected = (float(values[:, i].min()), float(values[:, i].max())) if len(values) else None
            assert ranges.get(f"{one.column.name}.{name}") == expected
    if present.any():
        first, shown = made.event(int(np.argmax(present))), found.first_events[0]
        of_event = [one for one in forms if one.column.per == "event"]
        for source in (source for one in of_event for source in one.sources):
            at = source.field or 0
            name = made.workload.column(source.into).fields[at]
            if len([one for one in of_event if name in one.column.fields]) > 1:
                name = f"{source.into}.{name}"
            value = shown.ids[source.name] if source.name in shown.ids else shown.event[name]
            assert value == first[source.into][0][at]
        assert len(shown.particles) == min(3, shown.num_particles)


def test_pulses_are_shown_in_their_types(tmp_path: Path) -> None:
    forms = [Form(Column("event_id", "event", "<u8", ("event_id",)), "flat", "<i8", "list", "list")]
    forms += [Form(Column("direction", "event", "<f4", ("azimuth", "zenith")), "struct", "<f8", "list", "list")]
    for name, dtype in (("sensor", "<i2"), ("time", "<f4"), ("auxiliary", "|b1")):
        forms.append(Form(Column(name, "particle", dtype, (name,)), "shared struct", dtype, "list", "list"))
    made = make(forms, [2], 1)
    made.stored["event_id"][:] = 2**62 + 1
    made.stored["direction"][:] = (0.5, 1.25)
    made.stored["sensor"][:, 0], made.stored["time"][:, 0], made.stored["auxiliary"][:, 0] = (5159, -1), (2, 3), (1, 0)
    found = describe(write(tmp_path / "f.parquet", made, rows_per_group=7), "f", made.workload, num_events=3)
    [event] = found.first_events
    assert event.ids == {"event_id_event_id": 2**62 + 1}
    assert event.event == {"azimuth": 0.5, "zenith": 1.25}
    text = "\n".join(lines(found))
    assert "event 0: event_id_event_id 4611686018427387905; azimuth 0.5, zenith 1.25; 2 particles" in text
    assert "    sensor 5159, time 2, auxiliary True\n    sensor -1, time 3, auxiliary False" in text
    assert as_json([found])[0]["first_events"][0]["particles"] == [
        {"sensor": 5159, "time": 2.0, "auxiliary": True},
        {"sensor": -1, "time": 3.0, "auxiliary": False},
    ]
    assert {column.name: column.is_read for column in found.layout} == {
        "unread": False,
        "event_id_event_id": True,
        "direction": True,
        "pulses": True,
    }


def test_derived_columns_are_not_among_those_of_a_file(tmp_path: Path) -> None:
    found = describe(write_derived(tmp_path / "f.parquet", range(30)), "f", DERIVED, num_events=3)
    assert (found.problems, found.events) == ([], 30)
    assert [one.name for one in found.ranges] == ["hits.charge", "number.id"]
    text = "\n".join(lines(found))
    assert "opens" not in text
    assert "total" not in text
