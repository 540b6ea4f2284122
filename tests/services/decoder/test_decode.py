"""Units as decoded: their events, derived columns, what is set aside, bad parts and bad events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from decoded_files import SEED, DecodedUnit, decoded, planned
from derived_columns import DERIVED, charges_of, write_derived
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import Event, make_events, make_table, write_events
from pyarrow import parquet as pq

from common.config import SourceConfig, StreamConfig
from common.messages import Part, Tally, Unit
from common.plan import Stream, generator, is_held_out
from common.schema import EventSchema, UnitArrays, ValueRule
from common.unit_arrays import SlotMismatch, content_digest, slot_bytes_needed
from services.decoder.microbatch import microbatch_bounds
from workloads.muons.columns import MUONS

NOT_EMPTY = "muons.count > 0"
unit_files = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=20), min_size=1, max_size=4)


def stream_of(**fields: object) -> StreamConfig:
    settings = {"batch_events": 4, "max_particles": 20, "max_particles_per_event": 8, "slot_mib": 1 / 8}
    return StreamConfig.model_validate({**settings, **fields})


def decode(unit: Unit, stream: StreamConfig, run_dir: Path, workload: EventSchema = MUONS) -> DecodedUnit:
    (one,) = decoded([unit], workload, stream, run_dir)
    return one


def unit_of(folder: Path, content: Sequence[Sequence[Event]], *, k: int = 3, epoch: int = 0) -> Unit:
    """A unit of whole files, file i with index 10 + i."""
    parts = []
    for index, events in enumerate(content):
        path = write_events(folder / f"{index}.parquet", events)
        parts.append(Part(10 + index, str(path), 0, 0, len(events), 1 << 20, file_row=100 * index))
    return Unit(k=k, epoch=epoch, block=0, block_first_unit=0, parts=tuple(parts))


def reference(
    content: Sequence[Sequence[Event]], stream: StreamConfig, unit: Unit
) -> tuple[list[tuple[int, int, Event]], Tally]:
    """The events (file, row, event) of a unit in order, one at a time."""
    rows = [(10 + f, 100 * f + r, event) for f, events in enumerate(content) for r, event in enumerate(events)]
    order = list(range(len(rows)))
    if stream.shuffle:
        order = generator(Stream.EVENTS, SEED, unit.epoch, unit.k).permutation(len(rows)).tolist()
    kept, outliers, filtered, held_out = [], 0, 0, 0
    for i in order:
        num_muons = len(rows[i][2].muons)
        if num_muons == 0 and stream.where:
            filtered += 1
        elif is_held_out(np.array([[rows[i][2].major, rows[i][2].minor]], np.uint64), stream.held_out)[0]:
            held_out += 1
        elif num_muons > stream.outlier_above:
            outliers += 1
        else:
            kept.append(rows[i])
    return kept, Tally(rows_read=len(rows), outliers=outliers, filtered=filtered, held_out=held_out)


def assert_holds(arrays: UnitArrays, expected: Sequence[tuple[int, int, Event]]) -> None:
    """The arrays hold exactly these events, each with its own particles."""
    assert len(arrays.offsets) == len(expected) + 1
    for e, (file, row, event) in enumerate(expected):
        assert arrays.event_columns["source_file"][e, 0] == file
        assert arrays.event_columns["source_row"][e, 0] == row
        assert arrays.event_columns["primary_id"][e].tolist() == [event.major, event.minor]
        assert arrays.event_columns["primary"][e].tolist() == list(event.primary)
        muons = arrays.particle_columns["muons"][arrays.offsets[e] : arrays.offsets[e + 1]]
        assert muons.tolist() == [list(muon) for muon in event.muons]
    assert arrays.offsets[0] == 0
    assert arrays.offsets[-1] == len(arrays.particle_columns["muons"])


@settings(deadline=None, max_examples=60)
@given(
    unit_files,
    st.booleans(),
    st.sampled_from(["", NOT_EMPTY]),
    st.integers(0, 3),
    st.integers(0, 50),
    st.sampled_from([0.0, 0.2, 0.9]),
    st.sampled_from([0, 64, 100]),
)
def test_a_unit_holds_what_a_loop_over_its_rows_gives(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[list[int]],
    shuffle: bool,
    where: str,
    epoch: int,
    k: int,
    held_out: float,
    max_squared: int,
) -> None:
    folder = tmp_path_factory.mktemp("unit")
    stream = stream_of(shuffle=shuffle, where=where, held_out=held_out, max_squared_particles=max_squared)
    content = [make_events(file, first=1000 * index) for index, file in enumerate(counts)]
    unit = unit_of(folder, content, k=k, epoch=epoch)
    one = decode(unit, stream, folder)
    arrays, layout = one.arrays, one.layout
    expected, expected_tally = reference(content, stream, unit)
    assert_holds(arrays, expected)
    assert one.tally == expected_tally
    assert one.tally.adds_up(layout)
    bounds = microbatch_bounds(arrays.offsets, stream.microbatch_events, stream.max_particles, max_squared)
    assert arrays.microbatch_bounds.tolist() == bounds.tolist()
    assert len(bounds) == layout.microbatches + 1


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("damaged", [0, 2])
def test_a_unit_of_which_a_part_is_damaged_between_two_decodings_has_another_content(
    tmp_path: Path, shuffle: bool, damaged: int
) -> None:
    unit = unit_of(tmp_path, [make_events([1, 0, 9, 3]), make_events([2] * 3), make_events([1, 2])])
    digests = []
    for _ in range(3):
        digests.append(content_digest(decode(unit, stream_of(shuffle=shuffle), tmp_path).arrays))
        if len(digests) == 2:
            (tmp_path / f"{damaged}.parquet").write_bytes(b"rotten")
    assert digests[0] == digests[1] != digests[2]


def test_a_bad_part_is_quarantined_and_the_others_go_on(tmp_path: Path) -> None:
    good = make_events([2, 1, 3])
    bad = [Event(7, 7, (1000.0, 0.5, 4.0, 1500.0), ((float("nan"), 0.0, 0.0),))] * 4
    unit = unit_of(tmp_path, [good, bad, good])
    one = decode(unit, stream_of(shuffle=False), tmp_path)
    (told,) = one.tally.bad
    assert (told.file, told.row_group, told.rows) == (11, 0, 4)
    assert told.reason == (
        f"{tmp_path}/1.parquet: row group 0: 4 of its 4 events are invalid, and source.max_invalid_share = 0.05 allows "
        "fewer: its columns are probably not what their names say (see source.columns and source.fields). Most often: "
        "column 'muons', energy_gev: expected a finite number; e.g. "
        f"{tmp_path}/1.parquet: row group 0, row 100 of the file: energy_gev is nan"
    )
    assert (one.tally.rows_read, one.tally.quarantined, one.layout.events) == (10, 4, 6)
    expected = [(10, r, event) for r, event in enumerate(good)] + [(12, 200 + r, event) for r, event in enumerate(good)]
    assert_holds(one.arrays, expected)


NAN_MUON = ((float("nan"), 0.0, 0.0),)


@pytest.mark.parametrize(
    ("share", "num_invalid", "is_quarantined"),
    [(0.0, 1, True), (0.05, 1, False), (0.05, 2, True), (0.25, 5, False), (0.25, 6, True), (1.0, 20, False)],
)
def test_more_invalid_events_than_their_share_quarantine_the_part(
    tmp_path: Path, share: float, num_invalid: int, is_quarantined: bool
) -> None:
    events = [replace(e, muons=NAN_MUON) if i < num_invalid else e for i, e in enumerate(make_events([1] * 20))]
    workload = replace(MUONS, source=SourceConfig(max_invalid_share=share))
    one = decode(unit_of(tmp_path, [events, make_events([1] * 3)]), stream_of(), tmp_path, workload)
    assert (one.tally.quarantined, one.tally.invalid) == ((20, 0) if is_quarantined else (0, num_invalid))
    assert one.tally.adds_up(one.layout)


@pytest.mark.parametrize("shuffle", [False, True])
def test_one_bad_event_costs_one_event(tmp_path: Path, shuffle: bool) -> None:
    """A NaN, an energy below 0 and a list of another length: each event alone is set aside, named, and stored."""
    first, second = make_events([2, 1, 9, 3] * 10), make_events([1, 0] * 20)
    first[5] = replace(first[5], muons=((1.0, float("nan"), 0.0),))
    first[9] = replace(first[9], primary=(-5.0, 0.5, 4.0, 1500.0))
    second[7] = replace(second[7], primary=(5.0, 0.5, 4.0))
    second[8] = replace(second[8], muons=NAN_MUON)
    unit = unit_of(tmp_path, [first, second])
    stream = stream_of(shuffle=shuffle, where=NOT_EMPTY)
    one, again = decoded([unit, replace(unit, epoch=1)], MUONS, stream, tmp_path)
    tally = one.tally
    assert (tally.rows_read, tally.invalid, tally.outliers, tally.quarantined) == (80, 4, 10, 0)
    assert tally.adds_up(one.layout)
    assert {one.rule: (one.events, one.examples) for one in tally.broken_rules} == {
        "column 'muons', x_m: expected a finite number": (
            *(1, (f"{tmp_path}/0.parquet: row group 0, row 5 of the file: x_m is nan",)),
        ),
        "column 'primary', energy_gev: expected a finite number of at least 1e-09": (
            *(1, (f"{tmp_path}/0.parquet: row group 0, row 9 of the file: energy_gev is -5",)),
        ),
        "column 'primary': expected 4 (energy_gev, zenith_rad, mass_a, depth_m; source.fields.primary names others)": (
            *(1, (f"{tmp_path}/1.parquet: row group 0, row 107 of the file: a list has 3 numbers",)),
        ),
        "column 'muons', energy_gev: expected a finite number": (
            *(1, (f"{tmp_path}/1.parquet: row group 0, row 108 of the file: energy_gev is nan",)),
        ),
    }
    rows = one.arrays.event_columns["source_row"][:, 0].tolist()
    assert not {5, 9, 107, 108} & set(rows)
    [stored] = [pq.read_table(path) for path in (tmp_path / "invalid").iterdir()]
    assert stored["source_row"].to_pylist() == [5, 9, 107, 108]
    assert stored["source_file"].to_pylist() == [f"{tmp_path}/{i}.parquet" for i in (0, 0, 1, 1)]
    assert stored["primary"].to_pylist()[1:3] == [[-5.0, 0.5, 4.0, 1500.0], [5.0, 0.5, 4.0]]
    assert stored["reason"].to_pylist()[1] == "column 'primary', energy_gev: expected a finite number of at least 1e-09"
    assert again.tally.invalid == 4


def test_a_part_with_more_particles_than_its_footer_promised_is_quarantined_alone(tmp_path: Path) -> None:
    """A damaged footer may say too few: that must not fail the whole unit for want of space."""
    unit = unit_of(tmp_path, [make_events([2, 3]), make_events([5, 12, 1])])
    for particles, num_bad in ((5 + 8 + 1, 0), (5 + 8, 1)):  # the event of 12 is an outlier: no more than 8 count
        parts = (replace(unit.parts[0], particles=5), replace(unit.parts[1], particles=particles))
        one = decode(replace(unit, parts=parts), stream_of(), tmp_path)
        assert len(one.tally.bad) == num_bad
        assert one.layout.events == 4 - 2 * num_bad
    assert one.tally.bad[0].reason.endswith("1.parquet: row group 0 has 14 particles; its footer promised at most 13")


def test_the_rows_of_a_span_are_counted_in_the_file(tmp_path: Path) -> None:
    events = make_events([1, 2, 0, 3, 1])
    path = write_events(tmp_path / "f.parquet", events)
    part = Part(4, str(path), 0, first_row=2, rows=3, particles=9, file_row=100)
    one = decode(Unit(0, 0, 0, 0, (part,)), stream_of(shuffle=False), tmp_path)
    assert_holds(one.arrays, [(4, 102 + r, event) for r, event in enumerate(events[2:])])


def test_fillers_are_counted(tmp_path: Path) -> None:
    filler = Event(1, 1, (1000.0, 0.5, 4.0, 1500.0), ((0.0, 0.0, 0.0),))
    one = decode(unit_of(tmp_path, [[filler, *make_events([2])]]), stream_of(where=NOT_EMPTY), tmp_path)
    assert (one.layout.events, one.tally.filtered, one.tally.particles_dropped) == (1, 1, 1)


def test_a_unit_that_does_not_fit_is_told(tmp_path: Path) -> None:
    with pytest.raises(SlotMismatch, match="the slot has 4096"):
        decode(unit_of(tmp_path, [make_events([5] * 200)]), stream_of(slot_mib=2**-8), tmp_path)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_whatever_the_planner_cuts_from_a_file_fits_its_slot(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("plan")
    stream = stream_of(slot_mib=8192 / 2**20, unit_events=40)
    rows = data.draw(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=150))
    events = [
        Event(i, 0, (1.0, 0.5, 4.0, 1.0), ((1.0, 0.0, 0.0),) * muons + ((0.0, 0.0, 0.0),) * fillers)
        for i, (muons, fillers) in enumerate(rows)
    ]
    path = folder / "f.parquet"
    pq.write_table(make_table(events, list_of=pa.large_list), path, row_group_size=100)
    units = decoded(planned([path], MUONS, stream), MUONS, stream, folder)
    assert sum(one.layout.events + one.tally.outliers for one in units) == len(events)


def test_values_that_can_t_be_are_told_with_counts_and_read_all_the_same(tmp_path: Path) -> None:
    degrees = [replace(event, primary=(1000.0, 57.5, 4.0, 1500.0)) for event in make_events([1, 2, 0])]
    good = decode(unit_of(tmp_path, [make_events([1, 2, 3])]), stream_of(shuffle=False), tmp_path)
    assert good.tally.outside_values == ""
    one = decode(unit_of(tmp_path, [make_events([1, 2]), degrees]), stream_of(shuffle=False), tmp_path)
    assert (one.layout.events, one.tally.quarantined) == (5, 0)
    told = one.tally.outside_values
    assert told.startswith(f"{tmp_path}/0.parquet and 1 more: values that can't be: 3 of 5 of ")
    assert "primary.zenith_rad lie outside of 0 to 3.14159, the first is 57.5" in told


def test_the_order_of_events_depends_on_the_shard_where_there_are_several(tmp_path: Path) -> None:
    unit = unit_of(tmp_path, [make_events([0] * 40)])
    orders = []
    for stream, key in [
        (stream_of(), ()),
        (stream_of().of_shard(0), ()),
        (stream_of(shards=2).of_shard(0), (0,)),
        (stream_of(shards=2).of_shard(1), (1,)),
    ]:
        rows = decode(unit, stream, tmp_path).arrays.event_columns["source_row"][:, 0].tolist()
        assert rows == generator(Stream.EVENTS, SEED, unit.epoch, unit.k, *key).permutation(40).tolist()
        orders.append(rows)
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("shuffle", [True, False])
def test_derived_columns_are_filled_of_the_events_in_the_order_of_the_slot(tmp_path: Path, shuffle: bool) -> None:
    stream = StreamConfig(shuffle=shuffle, batch_events=8, unit_events=25, slot_mib=1, max_particles_per_event=2)
    paths = [write_derived(tmp_path / f"{first}.parquet", range(first, first + 50)) for first in (0, 100)]
    ids: list[int] = []
    for unit in decoded(planned(paths, DERIVED, stream), DERIVED, stream, tmp_path):
        arrays = unit.arrays
        assert slot_bytes_needed(DERIVED, unit.layout) <= stream.slot_bytes
        for e, number in enumerate(arrays.event_columns["number"][:, 0].tolist()):
            mine = slice(*arrays.offsets[e : e + 2].tolist())
            charges = charges_of(number)
            assert arrays.particle_columns["hits"][mine, 0].tolist() == charges
            assert arrays.event_columns["total"][e, 0] == 2 * sum(charges)
            assert arrays.particle_columns["opens"][mine, 0].tolist() == [i == 0 for i in range(len(charges))]
            ids.append(number)
    assert (ids == sorted(ids)) != shuffle
    assert sorted(ids) == [one for one in (*range(50), *range(100, 150)) if one % 4 < 3], "all but the outliers"


def test_a_physical_range_of_a_derived_column_is_left_to_who_derives_it(tmp_path: Path) -> None:
    schema = replace(DERIVED, physical=(ValueRule("total", 0, minimum=0.0, maximum=1.0),))
    stream = StreamConfig(batch_events=8, unit_events=25, slot_mib=1)
    path = write_derived(tmp_path / "0.parquet", range(30))
    assert sum(unit.layout.events for unit in decoded(planned([path], schema, stream), schema, stream, tmp_path)) == 30


STREAM = StreamConfig(batch_events=64, slot_mib=1)

IDS_IN_LIST = SourceConfig(
    fields={"primary": ["primary_major_id", "primary_minor_id", "energy_gev", "zenith_rad", "mass_a", "depth_m"]}
)


@pytest.mark.parametrize(
    "bad", [[7.0, 3.0, 1e5, 0.5, 1.0], [7.0, 3.0, None, 0.5, 1.0, 1500.0], [7.0, math.nan] + 4 * [1.0]]
)
def test_a_bad_list_leaves_the_ids_of_the_others_which_stay_held_out(tmp_path: Path, bad: list[float]) -> None:
    def ids(primaries: list[list[float]]) -> set[tuple[int, ...]]:
        path = tmp_path / "a.parquet"
        muons = pa.array([[[10.0, 1.0, 2.0]]] * len(primaries), pa.list_(pa.list_(pa.float32())))
        pq.write_table(pa.table({"primary": pa.array(primaries, pa.list_(pa.float64())), "muons": muons}), path)
        workload, stream = MUONS.stored_as(IDS_IN_LIST), STREAM.model_copy(update={"held_out": 0.2})
        (unit,) = decoded(planned([path], workload, stream), workload, stream, tmp_path)
        assert unit.tally.quarantined == 0
        return set(map(tuple, unit.arrays.event_columns["primary_id"].tolist()))

    good = [[7.0, float(number), 1e5, 0.5, 1.0, 1500.0] for number in range(60)]
    assert 1 < len(ids(good)) < 60
    assert ids([*good[:3], bad, *good[4:]]) == ids(good) - {(7, 3)}


def test_invalid_events_of_files_with_numbers_of_different_types_are_stored_as_they_are(tmp_path: Path) -> None:
    big = 2**63 + 5
    paths = []
    for number, (kind, first, energy) in enumerate(((pa.uint64(), big, pa.float64()), (pa.int64(), -5, pa.int32()))):
        paths.append(tmp_path / f"{number}.parquet")
        energies = [-1.0, *19 * [1e5]]
        columns = {
            "primary_major_id": pa.array([max(first, 0)] * 20, pa.uint64() if first > 0 else pa.int64()),
            "primary_minor_id": pa.array(range(20), kind),
            "energy": pa.array(energies, pa.float64()).cast(energy),
            "zenith": pa.array([0.5] * 20),
            "mass": pa.array([1.0] * 20),
            "depth": pa.array([1500.0] * 20),
            "muons": pa.array([[[10.0, 1.0, 2.0]]] * 20, pa.list_(pa.list_(pa.float32()))),
        }
        pq.write_table(pa.table(columns), paths[-1])
    workload = MUONS.stored_as(SourceConfig(columns={"primary": ["energy", "zenith", "mass", "depth"]}))
    (unit,) = decoded(planned(paths, workload, STREAM), workload, STREAM, tmp_path)
    assert (unit.tally.invalid, unit.layout.events) == (2, 38)
    stored = [pq.read_table(path) for path in (tmp_path / "invalid").iterdir()]
    assert sorted(table["primary_major_id"][0].as_py() for table in stored) == [0, big]
    assert {str(table["energy"].type) for table in stored} == {"double", "int32"}


def test_lists_of_another_fixed_size_behind_rows_without_any_are_invalid_and_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    muons = pa.array([[]] * 70 + [[[1.0, 2.0, 3.0, 4.0]]] * 2, pa.list_(pa.list_(pa.float32(), 4)))
    columns = {name: pa.array(range(72), pa.uint64()) for name in ("primary_major_id", "primary_minor_id")}
    columns["primary"] = pa.array([[1e5, 0.5, 1.0, 1500.0]] * 72, pa.list_(pa.float32()))
    pq.write_table(pa.table({**columns, "muons": muons}), path)
    (unit,) = decoded(planned([path], MUONS, STREAM), MUONS, STREAM, tmp_path)
    assert (unit.tally.quarantined, unit.tally.invalid) == (0, 2)
