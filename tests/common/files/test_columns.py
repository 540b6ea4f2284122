"""Columns of any fixed width, per event or per particle, in every layout that a Parquet file may give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import decoded_files
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from column_files import FORMS, Form, Made, any_forms, make, table_of, write
from hdf5_files import write_hdf5
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import make_events

from common.config import SourceConfig, StreamConfig
from common.files.by_content import read_footer
from common.files.local import BadFileError
from common.messages import Tally
from common.plan import SlotCapacity
from common.schema import Column, EventSchema, Per, SourceColumn, UnitArrays, ValueRule

STREAM = StreamConfig(batch_events=4, max_particles=64, max_particles_per_event=8, unit_events=64, slot_mib=0.25)
event_counts = st.lists(st.integers(0, 12), min_size=1, max_size=40)


def decoded(path: Path, workload: EventSchema, stream: StreamConfig) -> list[tuple[Tally, UnitArrays]]:
    """All units of a file: planned from its footer, then decoded."""
    units = decoded_files.planned([path], workload, stream)
    return [(one.tally, one.arrays) for one in decoded_files.decoded(units, workload, stream, path.parent)]


def told_of(tally: Tally) -> tuple[str, str]:
    """The only rule that an event breaks, and its example behind the name of the file."""
    [broken] = tally.broken_rules
    assert (tally.invalid, tally.bad, broken.events) == (1, (), 1)
    return broken.rule, broken.examples[0].partition(".parquet: ")[2]


def events_in(units: Sequence[tuple[Tally, UnitArrays]]) -> dict[int, dict[str, list[list[Any]]]]:
    """Row in the file -> column -> rows of numbers."""
    found: dict[int, dict[str, list[list[Any]]]] = {}
    for _, arrays in units:
        for i, row in enumerate(arrays.event_columns["source_row"][:, 0].tolist()):
            first, end = arrays.offsets[i : i + 2].tolist()
            of_event = {name: column[i : i + 1].tolist() for name, column in arrays.event_columns.items()}
            of_event |= {name: column[first:end].tolist() for name, column in arrays.particle_columns.items()}
            assert row not in found, "an event comes once"
            found[row] = {name: value for name, value in of_event.items() if not name.startswith("source_")}
    return found


@settings(deadline=None, max_examples=60)
@given(
    any_forms(),
    event_counts,
    st.integers(0, 1 << 30),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.25, 1 / 64]),
    st.sampled_from([1, 7, 30, 300]),
    st.sampled_from([1, 10]),
    st.sampled_from([{}, {"data_page_version": "2.0", "use_dictionary": False, "compression": "zstd"}]),
)
def test_every_column_in_every_layout_lies_in_the_slot_as_numpy_has_it(
    tmp_path_factory: pytest.TempPathFactory,
    forms: list[Form],
    counts: list[int],
    seed: int,
    nulls: bool,
    extra: bool,
    slot_mib: float,
    rows_per_group: int,
    times: int,
    options: dict[str, Any],
) -> None:
    made = make(forms, counts * times, seed, nulls=nulls)
    path = tmp_path_factory.mktemp("f") / "f.parquet"
    write(path, made, rows_per_group=rows_per_group, extra=extra, **options)
    units = decoded(path, made.workload, STREAM.model_copy(update={"slot_mib": slot_mib}))
    kept = {}
    for row, null in enumerate(made.null_events.tolist()):
        mine = slice(*made.offsets[row : row + 2].tolist())
        if not null and (~made.null_particles[mine]).sum() <= STREAM.outlier_above:
            kept[row] = made.event(row)
    assert not [bad for tally, _ in units for bad in tally.bad]
    assert events_in(units) == kept
    assert sum(tally.empty for tally, _ in units) == made.null_events.sum()
    assert sum(tally.particles_dropped for tally, _ in units) == made.null_particles.sum()


def one_column(dtype: str, per: Per, form: str = "flat", file_dtype: str = "") -> list[Form]:
    """That column, and beside it one of particles."""
    tested = Form(Column("tested", per, dtype, ("x", "y")), form, file_dtype or dtype, "list", "list")
    other = Form(Column("other", "particle", "|b1", ("is_set",)), "flat", "|b1", "list", "list")
    return [tested, other]


@pytest.mark.parametrize(
    ("per", "form"), [("event", "list"), ("event", "flat"), ("particle", "list"), ("particle", "shared struct")]
)
@pytest.mark.parametrize(
    ("dtype", "file_dtype", "value", "told"),
    [
        ("<i2", "<i8", 32768, "32768; expected -32768 to 32767"),
        ("|u1", "<i2", -1, "-1; expected 0 to 255"),
        ("<u8", "<i8", -1, "-1; expected 0 to 18446744073709551615"),
        ("<i8", "<u8", 2**63, "9223372036854775808; expected -9223372036854775808 to 9223372036854775807"),
        ("<f4", "<f8", 1e39, "inf as float32 (1e+39 in the file); expected a finite number"),
    ],
)
def test_a_number_that_the_column_cannot_hold_is_named_with_its_place(
    tmp_path: Path, per: Per, form: str, dtype: str, file_dtype: str, value: float, told: str
) -> None:
    made = make(one_column(dtype, per, form, file_dtype), [2, 0, 3, 1, 2], 1)
    made.stored["tested"][3 if per == "event" else 5, 1] = value  # the event in row 3: the second of its row group
    path = write(tmp_path / "f.parquet", made, rows_per_group=2)
    [(tally, arrays)] = decoded(path, made.workload, STREAM)
    name = made.forms[0].sources[-1].name
    found, expected = told.split("; ")
    [broken] = tally.broken_rules
    assert broken.rule.startswith(f"column {name!r}: {expected}")
    assert broken.examples[0].endswith(f"f.parquet: row group 1, row 3 of the file: y is {found}")
    assert (tally.invalid, tally.bad) == (1, ())
    assert sorted(events_in([(tally, arrays)])) == [0, 1, 2, 4]


@pytest.mark.parametrize("per", ["event", "particle"])
@pytest.mark.parametrize(
    ("dtype", "file_dtype", "told"),
    [
        *(("|b1", "|u1", "bool"), ("|b1", "<f4", "bool"), ("<i2", "|b1", "integer"), ("<u8", "<f8", "integer")),
        *(("<f4", "|b1", "float"), ("<f8", "<i4", "float")),
    ],
)
def test_another_kind_of_number_is_refused_by_its_footer(
    tmp_path: Path, per: Per, dtype: str, file_dtype: str, told: str
) -> None:
    for form in FORMS if per == "particle" else set(FORMS) - {"shared struct", "struct of lists"}:
        forms = one_column(dtype, per, form, file_dtype)
        made = make([replace(forms[0], column=replace(forms[0].column, dtype=file_dtype)), forms[1]], [2, 1], 1)
        path = write(tmp_path / f"{form}.parquet", made, rows_per_group=2)
        workload = replace(made.workload, columns=tuple(one.column for one in forms))
        with pytest.raises(BadFileError) as refused:
            read_footer(path, workload, STREAM, SlotCapacity(workload, STREAM))
        lists = (per == "particle") + (form == "list")
        expected = "list<" * lists + told + ">" * lists if lists else f"{'an' if told == 'integer' else 'a'} {told}"
        assert f"column {forms[0].sources[0].name!r} has type " in str(refused.value)
        assert str(refused.value).endswith(f"; expected {expected}")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"p": [[{"x": 1}]]}, r"column 'p\.t' is missing: the struct has x, and 't' not or not once"),
        ({"p": [{"t": 1}]}, r"column 'p\.t' has type int64; expected list<integer>"),
        ({"p": [[1]]}, r"column 'p\.t' has type list<int64>; expected list<integer>"),
        ({"p": [[{"t": [1]}]]}, r"column 'p\.t' has type list<list<int64>>; expected list<integer>"),
        ({"p": [[[{"t": 1}]]]}, r"column 'p\.t' has type list<list<struct<t: int64>>>; expected list<integer>"),
        ({"q": [1]}, r"column 'p' is missing; the file has q"),
    ],
)
def test_a_struct_that_does_not_hold_the_column_is_refused(
    tmp_path: Path, table: dict[str, list[Any]], told: str
) -> None:
    workload = EventSchema("made", (Column("t", "particle", "<i8", ("t",)),), (SourceColumn("p.t", "t", 0),), ())
    pq.write_table(pa.table(table), tmp_path / "f.parquet")
    with pytest.raises(BadFileError, match=told):
        read_footer(tmp_path / "f.parquet", workload, STREAM, SlotCapacity(workload, STREAM))


def pulses(*, counts: Sequence[int] = (2, 0, 3, 1, 2), form: str = "flat") -> Made:
    """Events as those of a neutrino telescope."""
    forms = [Form(Column("event_id", "event", "<u8", ("event_id",)), "flat", "<i8", "list", "list")]
    forms += [Form(Column("direction", "event", "<f4", ("azimuth", "zenith")), "struct", "<f8", "list", "list")]
    for name, dtype in (("sensor", "<i2"), ("time", "<f4"), ("charge", "<f4"), ("auxiliary", "|b1")):
        forms.append(Form(Column(name, "particle", dtype, (name,)), form, dtype, "list", "list"))
    return make(forms, counts, 5)


@pytest.mark.parametrize(("form", "slot_mib"), [("flat", 1 / 64), ("struct of lists", 0.25)])
def test_a_footer_counts_the_particles_of_the_longest_column(tmp_path: Path, slot_mib: float, form: str) -> None:
    """The decoder must have the memory to find out which event's columns disagree."""
    table = pa.table({"a_a": [[1]] * 900, "b_b": [[1.0] * 5] * 900})
    if form == "struct of lists":
        table = pa.table({"a": [{"a_a": [1]}] * 900, "b": [{"b_b": [1.0] * 5}] * 900})
    pq.write_table(table, tmp_path / "f.parquet")
    forms = [
        Form(Column(name, "particle", dtype, (name,)), form, dtype, "list", "list")
        for name, dtype in (("a", "<i8"), ("b", "<f8"))
    ]
    stream = STREAM.model_copy(update={"slot_mib": slot_mib})
    workload = make(forms, [], 1).workload
    [group] = read_footer(tmp_path / "f.parquet", workload, stream, SlotCapacity(workload, stream)).row_groups
    assert group.particles == 5 * 900
    assert bool(group.spans) == (slot_mib < 0.1)
    assert sum(span.particles for span in group.spans) in (0, 5 * 900)


def test_columns_of_one_event_have_the_same_length(tmp_path: Path) -> None:
    made = pulses()
    table = table_of(made)
    lists = table.column("time_time").to_pylist()
    lists[2] = lists[2][:2]
    table = table.set_column(
        table.schema.get_field_index("time_time"), "time_time", pa.array(lists, pa.list_(pa.float32()))
    )
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=2)
    [(tally, arrays)] = decoded(tmp_path / "f.parquet", made.workload, STREAM)
    assert told_of(tally) == (
        "column 'time_time': expected the same number in all",
        "row group 1, row 2 of the file: 2 particles; another column has 3",
    )
    assert sorted(events_in([(tally, arrays)])) == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("form", "rule", "value", "told"),
    [
        (
            "shared struct",
            ValueRule("sensor", 0, minimum=0, maximum=5159),
            5160,
            "sensor is 5160; expected a number of at least 0 and of at most 5159",
        ),
        ("flat", None, np.nan, "charge is nan; expected a finite number"),
        ("flat", ValueRule("charge", 0, maximum=10.0), 11, "charge is 11; expected a finite number of at most 10"),
    ],
)
def test_rules_hold_for_numbers_of_every_type(
    tmp_path: Path, form: str, rule: ValueRule | None, value: float, told: str
) -> None:
    """Without a rule, a float must be finite."""
    made = pulses(form=form)
    made.stored["sensor"] %= 5160
    made.stored["charge"] = made.stored["charge"] % 10
    workload = replace(made.workload, rules=(rule,) if rule else ())
    rule = rule or ValueRule("charge", 0)
    path = write(tmp_path / "good.parquet", made, rows_per_group=2)
    assert not decoded(path, workload, STREAM)[0][0].invalid
    made.stored[rule.column][3] = value
    path = write(tmp_path / "f.parquet", made, rows_per_group=2)
    found, expected = told.split("; ")
    row = 2 if workload.column(rule.column).per == "event" else int(np.searchsorted(np.cumsum(made.counts), 3, "right"))
    assert told_of(decoded(path, workload, STREAM)[0][0]) == (
        f"column {rule.column!r}, {rule.column}: {expected}",
        f"row group {row // 2}, row {row} of the file: {found}",
    )


def test_a_rule_is_not_about_events_that_are_null(tmp_path: Path) -> None:
    """Their columns are zeros in the slot's place, and no rule may refuse those."""
    made = make(one_column("<i4", "event"), [1, 2, 1], 4, nulls=True)
    made.null_events[:] = [False, True, False]
    made.stored["tested"][:] = 7
    path = write(tmp_path / "f.parquet", made, rows_per_group=3)
    workload = replace(made.workload, rules=(ValueRule("tested", 0, minimum=5, maximum=9),))
    [(tally, arrays)] = decoded(path, workload, STREAM)
    assert (tally.bad, tally.empty, sorted(events_in([(tally, arrays)]))) == ((), 1, [0, 2])


@pytest.mark.parametrize("form", ["flat", "shared struct"])
def test_events_with_nulls_are_invalid_unless_they_are_allowed(tmp_path: Path, form: str) -> None:
    made = make(one_column("<i2", "particle", form), [2, 2, 2, 2], 4, nulls=True)
    for nulls in (made.null_events, made.null_lists, made.null_particles):
        nulls[:] = False
    made.null_particles[5] = True
    path = write(tmp_path / "f.parquet", made, rows_per_group=2)
    [(tally, _)] = decoded(path, replace(made.workload, source=SourceConfig()), STREAM)
    rule, example = told_of(tally)
    assert rule.endswith('expected none (source.nulls = "empty" would count it as empty)')
    assert example == "row group 1, row 2 of the file: a particle is null"
    [(tally, _)] = decoded(path, made.workload, STREAM)
    assert (tally.bad, tally.particles_dropped) == ((), 1)


def test_a_file_that_took_the_place_of_the_planned_one_is_quarantined_not_misread(tmp_path: Path) -> None:
    made = pulses()
    path = write(tmp_path / "f.parquet", made, rows_per_group=5)
    units = decoded_files.planned([path], made.workload, STREAM)
    table = table_of(made)
    column = table.schema.get_field_index("time_time")
    pq.write_table(table.set_column(column, "time_time", table.column("sensor_sensor")), path)
    [one] = decoded_files.decoded(units, made.workload, STREAM, tmp_path)
    [bad] = one.tally.bad
    assert "column 'time_time' has type list<element: int16>; expected list<float>" in bad.reason


def test_a_workload_without_tables_refuses_hdf5(tmp_path: Path) -> None:
    made = pulses()
    path = write(tmp_path / "f.parquet", made, rows_per_group=5)
    units = decoded_files.planned([path], made.workload, STREAM)
    write_hdf5(path, make_events([1, 2]))
    told = "HDF5, which the workload made is not read from: write Parquet files"
    with pytest.raises(BadFileError, match=told):
        read_footer(path, made.workload, STREAM, SlotCapacity(made.workload, STREAM))
    [one] = decoded_files.decoded(units, made.workload, STREAM, tmp_path)
    assert told in one.tally.bad[0].reason


def test_only_the_parts_of_a_struct_that_are_read_are_checked_and_those_that_arrow_reads_with_them(
    tmp_path: Path,
) -> None:
    """Arrow takes `time` for whatever begins with `time.`, too, and must not meet a damaged page there."""
    made = pulses(form="shared struct")
    table = table_of(made, extra=True)
    lone = Form(Column("time", "particle", "<f4", ("time",)), "flat", "<f4", "list", "list")
    flat = make([lone], [2, 1], 1)
    beside = table_of(flat).append_column("time_time.more", pa.array([1, 2]))
    for name, written, workload, columns in (
        ("struct", table, made.workload, ["pulses.list.element.extra.a", "pulses.list.element.list_time_time"]),
        ("beside", beside, flat.workload, ["unread.list.element", "time_time.more", "time_time.list.element"]),
    ):
        path = tmp_path / f"{name}.parquet"
        for damaged in columns:
            pq.write_table(written, path, row_group_size=5, compression="none", use_dictionary=False)
            with pq.ParquetFile(path) as file:
                group = file.metadata.row_group(0)
                [at] = [group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == damaged]
            raw = bytearray(path.read_bytes())
            raw[at.data_page_offset] = 0xFF  # the page's header
            path.write_bytes(raw)
            is_read = "extra" not in damaged and "unread" not in damaged
            if is_read:
                with pytest.raises(BadFileError, match=r"damaged: column .*: a page header"):
                    read_footer(path, workload, STREAM, SlotCapacity(workload, STREAM))
            else:
                assert not decoded(path, workload, STREAM)[0][0].bad
