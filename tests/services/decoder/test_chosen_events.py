"""What a user chooses of the events: a filter, further columns, and a function that changes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decoded_files import DecodedUnit, decoded, planned
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import make_events, make_table, write_events

from common.config import SourceConfig, StreamConfig
from common.errors import BadInputError
from common.files.by_content import ContentReader
from common.schema import EventSchema
from common.where import Where
from icestream.run_config import config_without_run
from workloads.muons.columns import MUONS

ENERGY = np.array([1.0, 5.0, 10.0, np.nan, 1e6], np.float32)
ROWS = {"primary": np.stack([ENERGY, ENERGY / 10, [1, 4, 14, 56, 1], ENERGY], 1).astype(np.float32)}
COUNTS = np.array([0, 1, 5, 7, 100])


def stream_of(**fields: Any) -> StreamConfig:
    return StreamConfig.model_validate({"batch_events": 64, "max_particles": 100, "slot_mib": 1 / 8, **fields})


def decode_all(
    paths: list[Path], stream: StreamConfig, workload: EventSchema = MUONS, folder: Path | None = None
) -> list[DecodedUnit]:
    units = decoded(planned(paths, workload, stream), workload, stream, folder or paths[0].parent)
    assert all(one.tally.adds_up(one.layout) for one in units)
    return units


# ------------------------------------------------------------------ the filter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("primary.energy_gev > 5", [0, 0, 1, 0, 1]),
        ("primary.energy_gev >= 5 and muons.count < 100", [0, 1, 1, 0, 0]),
        ("not primary.energy_gev >= 5", [1, 0, 0, 1, 0]),
        ("primary.mass_a == 1 or primary.mass_a == 56", [1, 0, 0, 1, 1]),
        ("1 <= muons.count <= 7", [0, 1, 1, 1, 0]),
        ("log10(primary.energy_gev) > 0.9 and abs(-muons.count) != 5", [0, 0, 0, 0, 1]),
        ("primary.zenith_rad == 0.1", [1, 0, 0, 0, 0]),  # as float32 has it
        ("muons.count / (muons.count - 1) > 2", [0, 1, 0, 0, 0]),  # a division by zero is no error
        ("2 > 1 and\n 4 < 5 < muons.count", [0, 0, 0, 1, 1]),
        ("primary.energy_gev != 5", [1, 0, 1, 1, 1]),
    ],
)
def test_an_event_is_kept_if_it_fulfils_the_condition(text: str, expected: list[int]) -> None:
    assert Where(text, MUONS).mask(ROWS, COUNTS).tolist() == [bool(one) for one in expected]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("primary.energy > 5", r"there is no primary\.energy; did you mean primary\.energy_gev\?"),
        ("energy_gev > 5", r"there is no energy_gev; did you mean primary\.energy_gev\?"),
        ("foo > 5", r"there is no foo; there are primary\.energy_gev, .*muons\.count"),
        ("muons.x_m > 0", r"there is no muons\.x_m"),
        ("primary.energy_gev", r"'primary\.energy_gev' is no condition: write comparisons"),
        ("primary.energy_gev > 5 &", "write comparisons"),
        ("primary.energy_gev in (1, 2)", "is no condition"),
        ("__import__('os').system('x') > 0", "is no number"),
        ("(lambda: 1)() > 0", "is no number"),
        ("'a' > 0", "is no number"),
        ("muons.count > 1/0", "write comparisons"),
        ("1" * 1001, "it has 1001 characters"),
        ("-" * 900 + "1 > 0", "it has more than 300 names"),
        ("muons.count + 1" + "0" * 40 + " > 0", "write comparisons"),
        ("(" * 500 + "1" + ")" * 499, "write comparisons"),
    ],
)
def test_a_text_that_is_no_condition_is_refused_with_what_to_write(text: str, told: str) -> None:
    with pytest.raises(BadInputError, match=rf"stream\.where = .*: .*{told}"):
        Where(text, MUONS)


VALUES = st.floats(-10, 10, width=32) | st.sampled_from([0.1, 0.3, float("nan")])
COMPARISONS = st.builds(
    lambda name, op, limit, mirrored: f"{limit} {op} {name}" if mirrored else f"{name} {op} {limit}",
    st.sampled_from(["primary.energy_gev", "primary.mass_a", "muons.count"]),
    st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
    st.sampled_from(["0.1", "0.3", "-5", "2.5", "0"]),
    st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=4),
    st.lists(COMPARISONS, min_size=1, max_size=3),
    st.data(),
)
def test_bounds_exclude_no_row_that_fulfils_the_condition(
    rows: list[tuple[float, float]], parts: list[str], data: st.DataObject
) -> None:
    text = f" {data.draw(st.sampled_from(['and', 'or']))} ".join(parts)
    text = f"not ({text})" if data.draw(st.booleans()) else text
    where = Where(text, MUONS)
    primary = np.zeros((len(rows), 4), np.float32)
    primary[:, [0, 2]] = rows
    bounds = {}
    for name, column in {"primary.energy_gev": primary[:, 0], "primary.mass_a": primary[:, 2]}.items():
        if np.isfinite(column).any():
            bounds[name] = float(np.nanmin(column)), float(np.nanmax(column))
    assert where.may_hold(bounds) or not where.mask({"primary": primary}, np.arange(len(rows))).any()


def test_row_groups_are_not_read_if_their_statistics_exclude_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten row groups, two have events above 10,084 GeV, more than any other number of their lists."""
    events = [replace(one, primary=(10_000.0 + one.major, *one.primary[1:])) for one in make_events([1] * 100)]
    path = write_events(tmp_path / "f.parquet", events, row_group_rows=10)
    read: list[int] = []
    original = ContentReader.read

    def noted(self: ContentReader, parts: Any, *args: Any, **kwargs: Any) -> Any:
        read.extend(part.row_group for part in parts)
        return original(self, parts, *args, **kwargs)

    monkeypatch.setattr(ContentReader, "read", noted)
    (one,) = decode_all([path], stream_of(where="primary.energy_gev > 10084"))
    assert sorted(read) == [8, 9]
    assert sorted(one.arrays.event_columns["primary_id"][:, 0].tolist()) == list(range(85, 100))
    assert (one.tally.rows_read, one.tally.filtered, one.layout.events) == (100, 85, 15)
    read.clear()
    (none,) = decode_all([path], stream_of(where="primary.energy_gev < 0.3"))
    assert (read, none.tally.filtered, none.layout.events) == ([], 100, 0)


def test_statistics_of_other_types_and_of_nan_exclude_no_event_that_is_kept(tmp_path: Path) -> None:
    """An int32 of 300 is none of int8, and NaN, which is in no statistics, is unequal to all."""
    table = make_table(make_events([1] * 40))
    numbers = pa.array([100] * 39 + [300], pa.int32())
    weights = pa.array([5.0, float("nan")] * 20)
    pq.write_table(table.append_column("x", numbers).append_column("weight", weights), tmp_path / "f.parquet")
    for where, events in (("x > 50", 39), ("weight != 5", 19), ("weight == 5", 20)):
        schema = MUONS.stored_as(SourceConfig(extra={"x": "int8", "weight": "float64"}, max_invalid_share=1))
        (one,) = decode_all([tmp_path / "f.parquet"], stream_of(where=where), schema)
        assert (one.layout.events, one.tally.invalid) == (events, 1), where


def test_a_filtered_event_is_neither_outlier_nor_held_out(tmp_path: Path) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([1, 200, 200, 1] * 10))
    stream = stream_of(where="primary.energy_gev < 1020", held_out=0.5)
    (one,) = decode_all([path], stream)
    assert one.tally.filtered == 20
    assert 0 < one.tally.held_out < 20
    assert one.tally.outliers + one.tally.held_out + one.layout.events == 20


# ------------------------------------------------------------------ further columns


@pytest.fixture
def weighted(tmp_path: Path) -> Path:
    """Events with a weight (one of them NaN), a run, and a time for each muon."""
    table = make_table(make_events([2, 0, 3]))
    weights = pa.array([0.5, float("nan"), 2.0], pa.float64())
    times = pa.array([[1.0, 2.0], [], [3.0, 4.0, 5.0]], pa.list_(pa.float32()))
    table = table.append_column("weight", weights).append_column("run_id", pa.array([7, 8, 9], pa.int32()))
    pq.write_table(table.append_column("time_ns", times), tmp_path / "weighted.parquet")
    return tmp_path / "weighted.parquet"


def test_further_columns_are_handed_through_in_their_own_type(weighted: Path) -> None:
    config = config_without_run(
        None, ['source.extra=["weight", "run_id", "time_ns"]', "stream.slot_mib=2"], [str(weighted)]
    )
    assert config.source.extra == {"weight": "float64", "run_id": "int32", "time_ns": "list<float32>"}
    (one,) = decode_all([weighted], config.stream, config.stored_workload())
    assert one.layout.events == 3, "an event with a weight that is NaN is as good as any"
    columns = one.arrays.event_columns | one.arrays.particle_columns
    order = columns["source_row"][:, 0]
    assert columns["weight"].dtype == np.float64
    assert np.array_equal(columns["weight"][:, 0], np.array([0.5, np.nan, 2.0])[order], equal_nan=True)
    assert columns["run_id"].dtype == np.int32
    assert columns["run_id"][:, 0].tolist() == [[7, 8, 9][row] for row in order]
    first = one.arrays.offsets[:-1][order == 2][0]
    assert columns["time_ns"][first : first + 3, 0].tolist() == [3.0, 4.0, 5.0]


def test_a_filter_may_name_them(weighted: Path) -> None:
    schema = MUONS.stored_as(SourceConfig(extra={"weight": "float64"}))
    (one,) = decode_all([weighted], stream_of(where="weight > 1"), schema)
    assert (one.arrays.event_columns["weight"].tolist(), one.tally.filtered) == ([[2.0]], 2)


def test_a_null_of_floats_is_nan_and_costs_no_event(tmp_path: Path) -> None:
    table = make_table(make_events([1, 2, 1]))
    table = table.append_column("weight", pa.array([1.0, None, 3.0])).append_column("run", pa.array([1, 2, None]))
    pq.write_table(table, tmp_path / "f.parquet")
    for nulls in ("error", "empty"):
        schema = MUONS.stored_as(SourceConfig(extra={"weight": "float64"}, nulls=nulls))  # type: ignore[arg-type]
        (one,) = decode_all([tmp_path / "f.parquet"], stream_of(shuffle=False), schema)
        assert np.array_equal(one.arrays.event_columns["weight"][:, 0], [1.0, np.nan, 3.0], equal_nan=True)
    schema = MUONS.stored_as(SourceConfig(extra={"run": "int64"}, max_invalid_share=1))
    (one,) = decode_all([tmp_path / "f.parquet"], stream_of(), schema)
    assert (one.layout.events, one.tally.invalid) == (2, 1)


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ('["wieght"]', r"has no column 'wieght'; it has primary_major_id, .*weight"),
        (
            '{weight = "complex64"}',
            r"source\.extra\.weight = 'complex64': expected a type, one of bool, .*list<float32>",
        ),
        ('{primary = "float32"}', r"source\.extra\.primary: the name is taken; the workload muons has .*primary_id"),
        ('{source_row = "int64"}', r"source\.extra\.source_row: the name is taken"),
        ('{offsets = "int64"}', r"source\.extra\.offsets: the name is taken"),
    ],
)
def test_a_further_column_that_can_not_be_is_refused(weighted: Path, extra: str, told: str) -> None:
    with pytest.raises(BadInputError, match=told):
        config_without_run(None, [f"source.extra={extra}"], [str(weighted)]).stored_workload()


def test_a_type_is_asked_for_where_no_local_file_tells_it() -> None:
    with pytest.raises(BadInputError, match=r"'weight' without a type, .*write \{weight = \"float64\"\}"):
        config_without_run(None, ['source.extra=["weight"]'], ["pelican://host/data"])


# ------------------------------------------------------------------ a function of the user's


FUNCTIONS = """
import numpy as np

def smear(events, particles, offsets, random):
    particles["muons"][:, 0] *= random.lognormal(0, 0.1, len(particles["muons"]))

def doubled(events, particles, offsets, random):
    events["primary"] = events["primary"] * 2

def thinned(events, particles, offsets, random):
    return random.random(len(particles["muons"])) < 0.5

def wrong(events, particles, offsets, random):
    return events["primary"]["energy"]

def swapped(events, particles, offsets, random):
    events["weight"], events["other"] = events["other"], events["weight"]

def rounded(events, particles, offsets, random):
    events["primary_id"] = events["primary_id"] * 0.5

def added(events, particles, offsets, random):
    events["new"] = events["primary"]

def too_long(events, particles, offsets, random):
    return np.ones(3, bool)
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], StreamConfig]:
    """Maker of a stream's settings with one of these functions."""
    (tmp_path / "own_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_functions", raising=False)
    return lambda name, **more: stream_of(transform=f"own_functions:{name}", **more)  # type: ignore[misc]


def test_it_changes_the_numbers_by_random_ones_that_depend_on_the_unit_alone(
    tmp_path: Path, functions: Callable[..., StreamConfig]
) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([3, 0, 2, 4] * 8))
    (plain,), (once,), (again,) = (
        decode_all([path], stream) for stream in (stream_of(), functions("smear"), functions("smear"))
    )
    ratio = once.arrays.particle_columns["muons"][:, 0] / plain.arrays.particle_columns["muons"][:, 0]
    assert 0.05 < np.log(ratio).std() < 0.2
    assert once.slot.tobytes() == again.slot.tobytes()
    assert once.layout == plain.layout


def test_it_may_give_an_array_of_its_own(tmp_path: Path, functions: Callable[..., StreamConfig]) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([1, 2]))
    (one,) = decode_all([path], functions("doubled", shuffle=False))
    assert one.arrays.event_columns["primary"][:, 0].tolist() == [2000.0, 2002.0]


def test_two_columns_may_be_swapped(tmp_path: Path, functions: Callable[..., StreamConfig]) -> None:
    table = make_table(make_events([1, 2]))
    for name, first in (("weight", 1.0), ("other", 3.0)):
        table = table.append_column(name, pa.array([first, first + 1]))
    pq.write_table(table, tmp_path / "f.parquet")
    schema = MUONS.stored_as(SourceConfig(extra={"weight": "float64", "other": "float64"}))
    (one,) = decode_all([tmp_path / "f.parquet"], functions("swapped", shuffle=False), schema)
    columns = one.arrays.event_columns
    assert [columns[name][:, 0].tolist() for name in ("weight", "other")] == [[3.0, 4.0], [1.0, 2.0]]


def test_it_is_not_called_for_a_unit_without_events(tmp_path: Path, functions: Callable[..., StreamConfig]) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([1, 2]))
    (one,) = decode_all([path], functions("wrong", where="muons.count > 5"))
    assert (one.layout.events, one.tally.filtered) == (0, 2)


def test_it_may_leave_out_particles(tmp_path: Path, functions: Callable[..., StreamConfig]) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([30] * 40))
    stream = functions("thinned", shuffle=False)
    units = decode_all([path], stream)
    counts = np.concatenate([np.diff(one.arrays.offsets) for one in units])
    assert len(counts) == 40
    assert 400 < counts.sum() < 800
    for one in units:
        assert one.layout.particles == one.arrays.offsets[-1]
        assert one.arrays.microbatch_bounds[-1] == one.layout.events
        ids = one.arrays.event_columns["primary_id"][:, 0]
        of_muons = one.arrays.particle_columns["muons"][:, 0] - 1
        assert np.array_equal(of_muons, np.repeat(ids.astype(np.float32), np.diff(one.arrays.offsets)))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("wrong", r"IndexError: only integers.* \(.*own_functions\.py, line 15\)"),
        ("rounded", r"TypeError: 'primary_id' is float64 of shape \(2, 2\); expected uint64 of shape \(2, 2\)"),
        ("added", r"TypeError: it has the columns .*new.*; expected .*muons"),
        ("too_long", r"it returned bool of shape \(3,\); expected None, or bool of shape \(3,\)?.*particles that stay"),
    ],
)
def test_an_error_in_it_names_the_function_and_the_file(
    tmp_path: Path, functions: Callable[..., StreamConfig], name: str, told: str
) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([1, 3]))
    with pytest.raises(BadInputError, match=rf"own_functions:{name}' failed in unit 0 of .*f\.parquet: .*") as failed:
        decode_all([path], functions(name))
    assert "\n" not in str(failed.value)
