"""Files of former converters, without columns of ids or with times: what is said of them, and what is read."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from muon_files import Event, make_events, make_table

from common.config import StreamConfig
from common.errors import BadInputError
from common.files.by_content import plan_file, rows_of
from common.files.parquet.footer import footer_digest
from common.schema import EventSchema
from icestream.commands.convert import convert_file
from services.config.root import load_config
from workloads.muons.columns import MUONS

EVENTS = make_events([2, 0, 3, 1, 0, 5, 1, 1])


def write(
    path: Path, events: Sequence[Event], *, inside: bool, time: bool, columns: bool = False, fixed: bool = False
) -> Path:
    """File with ids in the lists, with times in them, with columns of ids, with lists of fixed size."""
    primaries, muons = [], []
    for event in events:
        ids = [float(event.major), float(event.minor)] if inside else []
        after = [0.25] if time else []
        primaries.append([*ids, *event.primary[:3], *after, event.primary[3]])
        muons.append([[*ids, *muon, *after] for muon in event.muons])
    table = make_table(events)
    width = len(primaries[0])
    of = {
        "primary": pa.array(primaries, pa.list_(pa.float32(), width if fixed else -1)),
        "muons": pa.array(muons, pa.list_(pa.list_(pa.float32()))),
    }
    kept = {name: table.column(name) for name in ("primary_major_id", "primary_minor_id")} if columns else {}
    pq.write_table(pa.table({**kept, **of}), path, row_group_size=3)
    return path


def arrays(path: Path, schema: EventSchema) -> dict[str, npt.NDArray[np.generic]]:
    """Columns of all of a file's rows."""
    pieces = list(rows_of(plan_file(path, schema, StreamConfig(shuffle=False))[1], schema))
    return {
        "counts": np.concatenate([piece.counts for piece in pieces]),
        "muons": np.concatenate([piece.particle_columns["muons"] for piece in pieces]),
        **{name: np.concatenate([piece.event_columns[name] for piece in pieces]) for name in ("primary", "primary_id")},
    }


def said(path: Path, schema: EventSchema = MUONS) -> str:
    with pytest.raises(BadInputError) as raised:
        plan_file(path, schema, StreamConfig())
    return str(raised.value)


def schema_for(*assignments: str) -> EventSchema:
    """Schema with these settings, as they are given on the command line."""
    return load_config({}, assignments=assignments, environment={}).stored_workload()


def fields(*, inside: bool, time: bool) -> list[str]:
    """Settings for lists with ids in them, and with times."""
    ids, after = ['"primary_major_id", "primary_minor_id", '] * inside, ['"time_s", '] * time
    primary = ["[", *ids, '"energy_gev", "zenith_rad", "mass_a", ', *after, '"depth_m"]']
    muons = ["[", *ids, '"energy_gev", "x_m", "y_m"', *([', "time_s"'] * time), "]"]
    return [f"source.fields.primary={''.join(primary)}", f"source.fields.muons={''.join(muons)}"]


def equal(one: dict[str, npt.NDArray[np.generic]], other: dict[str, npt.NDArray[np.generic]]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The same events from a file of the present layout."""
    return arrays(write(tmp_path / "plain.parquet", EVENTS, inside=False, time=False, columns=True), MUONS)


@pytest.mark.parametrize(("fixed", "time"), [(False, True), (True, False)])
def test_ids_inside_the_lists_are_said_with_settings_that_read_the_same_events(
    tmp_path: Path, plain: dict[str, npt.NDArray[np.generic]], time: bool, fixed: bool
) -> None:
    path = write(tmp_path / "old.parquet", EVENTS, inside=True, time=time, fixed=fixed)
    message = said(path)
    assert f"primary has lists of {6 + time} numbers; expected 4" in message
    assert f"muons has lists of {5 + time} numbers; expected 3" in message
    assert "columns 'primary_major_id', 'primary_minor_id' are missing; the file has primary, muons" in message
    assert (
        f"Give --set 'source.fields.primary=[the names of the {6 + time} numbers, in order, primary_major_id and"
        " primary_minor_id among them]' --set 'source.fields.muons=["
    ) in message
    assert "source.ids" not in message
    assert equal(arrays(path, schema_for(*fields(inside=True, time=time))), plain)


def test_files_without_ids_get_a_digest_of_the_file_and_the_row(
    tmp_path: Path, plain: dict[str, npt.NDArray[np.generic]]
) -> None:
    path = write(tmp_path / "old.parquet", EVENTS, inside=False, time=False)
    assert said(path) == (
        "columns 'primary_major_id', 'primary_minor_id' are missing; the file has primary, muons. Give"
        " --set source.columns.primary_major_id=NAME --set source.columns.primary_minor_id=NAME, or, if it has no ids,"
        " --set source.ids=rows"
    )
    schema = schema_for("source.ids=rows")
    found = arrays(path, schema)
    ids = found.pop("primary_id")
    plain.pop("primary_id")
    assert equal(found, plain)
    assert ids[:, 1].tolist() == list(range(len(EVENTS)))
    assert set(ids[:, 0].tolist()) == {int(footer_digest(path), 16) % 2**63}
    moved = shutil.copy(path, tmp_path / "moved.parquet")
    assert np.array_equal(arrays(moved, schema)["primary_id"], ids)


def test_made_ids_are_those_of_the_row_however_the_file_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "old.parquet", EVENTS, inside=False, time=False)
    schema = schema_for("source.ids=rows")
    _, parts = plan_file(path, schema, StreamConfig(shuffle=False))
    assert len(parts) == 3
    late_first = [rows for part in reversed(parts) for rows in rows_of([part], schema)]
    assert [rows.event_columns["primary_id"][:, 1].tolist() for rows in late_first] == [[6, 7], [3, 4, 5], [0, 1, 2]]


def test_columns_of_ids_win_over_made_ones(tmp_path: Path, plain: dict[str, npt.NDArray[np.generic]]) -> None:
    path = write(tmp_path / "both.parquet", EVENTS, inside=False, time=False, columns=True)
    assert equal(arrays(path, schema_for("source.ids=rows")), plain)


def test_an_id_in_a_list_that_is_no_whole_number_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "old.parquet", EVENTS, inside=True, time=False)
    schema = schema_for(*fields(inside=True, time=False))
    table = pq.read_table(path)
    primaries = table.column("primary").to_pylist()
    primaries[4][1] = 0.5
    bad = table.set_column(0, "primary", pa.array(primaries, pa.list_(pa.float32())))
    pq.write_table(bad, path, row_group_size=3)
    with pytest.raises(BadInputError, match=r"'primary_minor_id', row 4 of the file: minor is 0.5; expected a whole"):
        arrays(path, schema)


@pytest.mark.parametrize("inside", [False, True])
def test_converted_old_files_have_columns_of_ids_and_need_no_settings(tmp_path: Path, inside: bool) -> None:
    path = write(tmp_path / "old.parquet", EVENTS, inside=inside, time=False)
    schema = schema_for(*(fields(inside=True, time=False) if inside else ["source.ids=rows"]))
    out = tmp_path / "new.parquet"
    convert_file(path, out, schema, rows_per_group=4)
    assert pq.read_schema(out).names == ["primary_major_id", "primary_minor_id", "primary", "muons"]
    assert equal(arrays(out, MUONS), arrays(path, schema))


def test_lists_of_an_unknown_width_are_said_with_their_number(tmp_path: Path) -> None:
    for numbers in (2, 9):
        events = [Event(1, 2, (1.0, 0.5, 4.0, 1500.0), ((1.0,) * numbers,))] * 3
        message = said(write(tmp_path / "odd.parquet", events, inside=False, time=False))
        assert f"muons has lists of {numbers} numbers; expected 3" in message
        assert ("source.fields.muons=[the names of the 9 numbers, in order]" in message) == (numbers == 9)


def test_one_damaged_list_is_no_layout_of_its_own(tmp_path: Path) -> None:
    events = [*EVENTS[:1], Event(1, 2, (1.0, 0.5), ()), *EVENTS[2:]]
    path = tmp_path / "damaged.parquet"
    pq.write_table(make_table(events), path, row_group_size=3)
    footer, _ = plan_file(path, MUONS, StreamConfig())
    assert footer.rows == len(events)
    with pytest.raises(BadInputError, match="a list has 2 numbers; expected 4"):
        arrays(path, MUONS)
