"""Files with absolute times: each event keeps its differences of times, or is refused; none loses them in silence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from decoded_files import DecodedUnit, decoded, planned
from hdf5_files import tables_of, write_tables
from muon_files import make_events
from native_layers import both_ways

import icestream
from common.config import SourceConfig, StreamConfig
from common.files.by_content import plan_file, rows_of
from common.files.hdf5 import Hdf5Reader
from common.schema import EventSchema, RelativeField
from icestream.cli import cli
from workloads.direction.columns import DIRECTION, MOST_NS
from workloads.muons.columns import MUONS

__all__ = ["both_ways"]

STREAM = StreamConfig(shuffle=False)
UNIX_NS = 1_700_000_000_123_456_789


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    folder = icestream.simulate(tmp_path_factory.mktemp("events"), workload="direction", events=40, files=1)
    return pq.read_table(next(folder.glob("*.parquet")))


def with_times(
    path: Path, table: pa.Table, kind: pa.DataType, start_ns: float, *, inside: bool = False, rounded: int | None = None
) -> Path:
    """The events with times from ``start_ns`` on, of that type; ``inside``: as a struct of lists.

    ``rounded``: pulse with a time that float64 rounds.
    """
    lists = table["pulses"].combine_chunks()
    pulses = lists.flatten()
    stored = np.float64 if pa.types.is_floating(kind) else np.int64
    times = pulses.field("time_ns").to_numpy().astype(stored) + stored(start_ns)
    if rounded is not None:
        times[rounded] = 1e17
    fields = {name: pulses.field(name) for name in ("sensor_id", "charge_pe", "is_auxiliary")}
    fields["time_ns"] = pa.array(times).cast(kind, safe=False)
    if inside:
        fields = {name: pa.ListArray.from_arrays(lists.offsets, values) for name, values in fields.items()}
    column = pa.StructArray.from_arrays(list(fields.values()), list(fields))
    if not inside:
        column = pa.ListArray.from_arrays(lists.offsets, column)
    place = table.schema.get_field_index("pulses")
    pq.write_table(table.set_column(place, "pulses", column), path, row_group_size=16)
    return path


def unit_of(path: Path, workload: EventSchema = DIRECTION) -> DecodedUnit:
    (unit,) = decoded(planned([path], workload, STREAM), workload, STREAM, path.parent)
    return unit


def times_of(path: Path) -> list[list[float]]:
    """Times of each event, as a decoder puts them into its slot, from the event's first on."""
    unit = unit_of(path)
    assert not unit.tally.bad, unit.tally.bad
    times = unit.arrays.particle_columns["pulses"][:, 0].astype(np.float64)
    assert np.abs(times).max() <= MOST_NS
    return [(one - one.min()).tolist() for one in np.split(times, unit.arrays.offsets[1:-1])]


@pytest.mark.parametrize(
    ("kind", "start_ns", "inside"),
    [
        (pa.float64(), 1e9, True),
        (pa.float64(), -1e12, False),
        (pa.int64(), UNIX_NS, True),
        (pa.uint64(), UNIX_NS, False),
    ],
)
def test_absolute_times_keep_their_differences(
    tmp_path: Path, simulated: pa.Table, kind: pa.DataType, start_ns: float, inside: bool
) -> None:
    expected = times_of(with_times(tmp_path / "small.parquet", simulated, pa.float32(), 0))
    found = times_of(with_times(tmp_path / "large.parquet", simulated, kind, start_ns, inside=inside))
    assert len(found) == 40
    assert found == expected


def test_times_that_the_file_itself_has_rounded_are_quarantined_and_named(tmp_path: Path, simulated: pa.Table) -> None:
    unit = unit_of(with_times(tmp_path / "unix.parquet", simulated, pa.float64(), UNIX_NS))
    assert len(unit.tally.bad) == 3
    reason = unit.tally.bad[0].reason
    assert "16 of its 16 events are invalid" in reason
    assert "column 'pulses.time_ns': expected at most 4.5036e+15, or numbers relative to the event" in reason
    assert "row 0 of the file: time_ns is 1.70000000012346" in reason


@pytest.mark.parametrize("inside", [False, True])
def test_one_event_with_a_rounded_time_is_set_aside_alone(tmp_path: Path, simulated: pa.Table, inside: bool) -> None:
    path = with_times(tmp_path / "x.parquet", simulated, pa.float64(), 1e12, inside=inside)
    expected = times_of(path)
    lists = simulated["pulses"].combine_chunks()
    particle = lists.offsets[17].as_py() + 1
    with_times(path, simulated, pa.float64(), 1e12, inside=inside, rounded=particle)
    unit = unit_of(path)
    assert (unit.tally.bad, unit.tally.invalid, unit.layout.events) == ((), 1, 39)
    (rule,) = unit.tally.broken_rules
    assert rule.rule == "column 'pulses.time_ns': expected at most 4.5036e+15, or numbers relative to the event"
    assert "row group 1, row 17 of the file: time_ns is 1e+17 as float64" in rule.examples[0]
    del expected[17]
    assert times_of(path) == expected


def test_times_of_float32_that_are_too_large_are_told(tmp_path: Path, simulated: pa.Table) -> None:
    unit = unit_of(with_times(tmp_path / "late.parquet", simulated, pa.float32(), 1e9))
    assert "pulses.time_ns lie outside of" in unit.tally.outside_values


@pytest.mark.process
def test_convert_writes_absolute_times_as_differences(tmp_path: Path, simulated: pa.Table) -> None:
    small = with_times(tmp_path / "small.parquet", simulated, pa.float32(), 0)
    (tmp_path / "in").mkdir()
    path = with_times(tmp_path / "in" / "large.parquet", simulated, pa.float64(), 1e12)
    arguments = ["convert", str(path), str(tmp_path / "out.parquet")]
    answer = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    assert times_of(tmp_path / "out.parquet") == times_of(small)


def test_a_null_pulse_does_not_move_the_times_of_another_event(tmp_path: Path, simulated: pa.Table) -> None:
    times = ([3e9, None, 3e9 + 4], [], [None], [7.0, 9.0], [None, 5e9, 5e9 + 1])
    rows = simulated[:5].to_pylist()
    for row, of_event in zip(rows, times, strict=True):
        row["pulses"] = [None if time is None else row["pulses"][0] | {"time_ns": time} for time in of_event]
    path = tmp_path / "nulls.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    unit = unit_of(path, DIRECTION.stored_as(SourceConfig(nulls="empty")))
    assert not unit.tally.bad
    assert unit.arrays.particle_columns["pulses"][:, 0].tolist() == [0, 4, 7, 9, 0, 1]


def test_an_event_of_an_hdf5_file_is_made_relative_alone(tmp_path: Path) -> None:
    workload = replace(MUONS, relative=(RelativeField("muons", 1, MOST_NS),))
    events = make_events([2, 0, 3, 1])
    tables = tables_of(events, dtype="<f8")
    tables["muons"][:, 3] = [1e12 + 2, 1e12 + 5, 0, -4, 3, 2, 1e12 + 7]
    path = write_tables(tmp_path / "x.h5", tables)
    _, parts = plan_file(path, workload, STREAM)
    (rows,) = rows_of(parts, workload)
    assert rows.particle_columns["muons"][:, 1].tolist() == [0, 3, -4, 3, 2, 0]
    tables["muons"][4, 3] = 1e17
    write_tables(path, tables)
    _, parts = plan_file(path, workload, STREAM)
    with pytest.raises(Exception, match=r"row 2 of the file: x_m is 1e\+17 as float64; expected at most"):
        list(rows_of(parts, workload))
    (read,) = Hdf5Reader(workload).read(parts)
    (broken,) = read.invalid
    assert broken.rows.tolist() == [2]
    assert broken.rule == "column 'muons': expected at most 4.5036e+15, or numbers relative to the event"
    assert read.counts.tolist() == [2, 0, 0, 1]
    assert read.particle_columns["muons"][:, 1].tolist() == [0, 3, 0]
    assert read.invalid_events is not None
    assert read.invalid_events["muons"].to_pylist()[0][1][1] == 1e17, "as it is stored"


def test_a_field_that_is_relative_must_be_one_of_particles() -> None:
    with pytest.raises(ValueError, match="column primary is relative to the event, but no column of floats per"):
        replace(MUONS, relative=(RelativeField("primary", 0, MOST_NS),))
