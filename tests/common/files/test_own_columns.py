"""Files that call the workload's columns otherwise: renamed, or a column for each number, by `source.columns`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from decoded_files import decoded, planned
from muon_files import Event, make_events, make_table, write_events

from common.config import SourceConfig, StreamConfig
from common.errors import BadInputError
from common.plan import plan_hash
from common.schema import EventSchema
from icestream.cli import cli
from icestream.commands.inspect import describe
from services.config.root import load_config
from workloads.direction.columns import DIRECTION
from workloads.muons.columns import MUONS
from workloads.muons.primaries import read_primaries

STREAM = StreamConfig(shuffle=False)
FLAT: dict[str, Any] = {
    "primary_major_id": "run",
    "primary_minor_id": "event",
    "primary": ["energy", "zenith", "A", "depth"],
    "muons": ["mu_e", "mu_x", "mu_y"],
}
RENAMED: dict[str, Any] = {"primary_major_id": "run", "primary": "shower", "muons": "tracks.momentum"}


def flat_table(events: list[Event]) -> pa.Table:
    """A column for each number; mass numbers are whole."""
    primary = np.array([event.primary for event in events])
    of_muons = [[[muon[i] for muon in event.muons] for event in events] for i in range(3)]
    return pa.table(
        {
            "run": pa.array([event.major for event in events], pa.int32()),
            "event": pa.array([event.minor for event in events], pa.int64()),
            "energy": primary[:, 0],
            "zenith": primary[:, 1].astype(np.float32),
            "A": primary[:, 2].astype(np.int16),
            "depth": primary[:, 3],
            **{name: pa.array(of_muons[i], pa.list_(pa.float32())) for i, name in enumerate(("mu_e", "mu_x", "mu_y"))},
            "comment": ["not read"] * len(events),
        }
    )


def renamed_table(events: list[Event]) -> pa.Table:
    table = make_table(events)
    muons = pa.StructArray.from_arrays([table["muons"].combine_chunks()], ["momentum"])
    return pa.table(
        {
            "run": table["primary_major_id"],
            "primary_minor_id": table["primary_minor_id"],
            "shower": table["primary"],
            "tracks": muons,
        }
    )


def schema(columns: Mapping[str, Any], **source: Any) -> EventSchema:
    return MUONS.stored_as(SourceConfig.model_validate({"columns": columns, **source}))


def arrays(path: Path, workload: EventSchema, folder: Path) -> dict[str, np.ndarray]:
    (one,) = decoded(planned([path], workload, STREAM), workload, STREAM, folder)
    assert not one.tally.bad
    found = {"offsets": one.arrays.offsets, **one.arrays.event_columns, **one.arrays.particle_columns}
    return {name: array.copy() for name, array in found.items()}


@pytest.mark.process
@pytest.mark.parametrize(("columns", "table"), [(FLAT, flat_table), (RENAMED, renamed_table)])
def test_other_names_give_the_same_arrays_and_the_same_converted_file(
    tmp_path: Path, columns: dict[str, Any], table: Any
) -> None:
    events = make_events([2, 0, 5, 1, 7])
    usual, other = write_events(tmp_path / "usual.parquet", events), tmp_path / "other.parquet"
    pq.write_table(table(events), other)
    expected, found = arrays(usual, MUONS, tmp_path), arrays(other, schema(columns), tmp_path)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert found[name].dtype == array.dtype

    settings = [text for name, value in columns.items() for text in ("--set", f"source.columns.{name}={value}")]
    for path, more in ((usual, []), (other, settings)):
        out = tmp_path / f"converted-{path.name}"
        answer = CliRunner().invoke(cli, ["convert", str(path), str(out), *more], catch_exceptions=False)
        assert answer.exit_code == 0, answer.output
    converted = [
        next(tmp_path.glob(f"converted-{name}.parquet/**/*.parquet"), tmp_path / f"converted-{name}.parquet")
        for name in ("usual", "other")
    ]
    assert pq.read_table(converted[0]).equals(pq.read_table(converted[1]))
    assert pq.read_schema(converted[1]).names == [source.name for source in MUONS.source_columns]


def test_the_names_are_part_of_the_plan_and_without_any_the_plan_is_the_former_one() -> None:
    def of(columns: Mapping[str, Any]) -> str:
        return plan_hash(schema(columns), StreamConfig(), 0)

    assert of({}) == plan_hash(MUONS, StreamConfig(), 0) == of({"muons": "muons"})
    swapped = FLAT | {"muons": ["mu_e", "mu_y", "mu_x"]}
    assert len({of({}), of(FLAT), of(RENAMED), of(swapped)}) == 4


def test_names_are_settings_of_every_kind_also_those_of_fields_of_structs() -> None:
    given = ["source.columns.primary_major_id=run", 'source.columns.primary=["energy", "zenith", "A", "depth"]']
    config = load_config({}, assignments=given, environment={})
    assert config.source.columns == {"primary_major_id": "run", "primary": ("energy", "zenith", "A", "depth")}
    config = load_config({}, assignments=["source.columns.pulses.time_ns=hits.t", "workload=direction"], environment={})
    assert config.source.columns == {"pulses.time_ns": "hits.t"}
    assert load_config(config.model_dump(mode="json"), environment={}).source == config.source
    stored = config.stored_workload()
    assert next(one.name for one in stored.source_columns if one.key == "pulses.time_ns") == "hits.t"
    assert stored.in_own_layout().source_columns == DIRECTION.source_columns


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"primry": "x"}, r"source\.columns\.primry: the workload muons has no such column; it has primary_major_id, "),
        ({"primary": ["energy", "zenith"]}, r"expected 4 columns, of energy_gev, zenith_rad, mass_a, depth_m"),
        ({"primary_major_id": ["a", "b"]}, r"primary_major_id is one number: give the name of one column"),
        ({"primary": ["a", "b", "c", "a"]}, r"'a' is named twice"),
        ({"primary_major_id": "primary_minor_id"}, r"'primary_minor_id' is named twice"),
        ({"primary": "x.", "muons": "m"}, r"source\.columns\.primary: a name is empty"),
        ({"primary": "muons.primary"}, r"source\.columns: .*values per event and per particle"),
    ],
)
def test_names_that_make_no_sense_are_refused(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        schema(columns)


def test_a_list_with_numbers_of_its_own_cannot_be_columns_too() -> None:
    fields = {"primary": ["energy_gev", "zenith_rad", "mass_a", "time_s", "depth_m"]}
    with pytest.raises(BadInputError, match=r"is a list with source\.fields\.primary"):
        schema({"primary": ["a", "b", "c", "d"]}, fields=fields)
    assert schema({"primary": "shower"}, fields=fields).source_columns[2].stored == tuple(fields["primary"])


def test_inspect_prints_the_settings_with_which_a_foreign_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "foreign.parquet"
    pq.write_table(flat_table(make_events([1, 2, 3])), path)
    (text,) = describe(path, "foreign", MUONS, num_events=1).problems
    assert "the file has run, event, energy, zenith, A, depth, mu_e, mu_x, mu_y, comment. If it has other names" in text
    ids = "--set source.columns.primary_major_id=NAME --set source.columns.primary_minor_id=NAME"
    assert f"{ids} --set 'source.columns.primary=[NAME, or the columns or fields of energy_gev" in text
    assert "--set 'source.columns.muons=[NAME, or the columns or fields of energy_gev, x_m, y_m]'" in text


def test_structs_in_the_place_of_lists_are_named_with_the_setting_for_their_fields(tmp_path: Path) -> None:
    path, events = tmp_path / "structs.parquet", make_events([1, 2, 3])
    usual = pq.read_table(write_events(tmp_path / "usual.parquet", events))
    muons = [[{"x": x, "y": y, "E": energy} for energy, x, y in muons] for muons in usual["muons"].to_pylist()]
    pq.write_table(usual.set_column(usual.schema.get_field_index("muons"), "muons", pa.array(muons)), path)
    (text,) = describe(path, "structs", MUONS, num_events=0).problems
    assert "column 'muons' has type list<" in text
    assert text.endswith("--set 'source.columns.muons=[NAME, or the columns or fields of energy_gev, x_m, y_m]'")
    workload = schema({"muons": ["muons.E", "muons.x", "muons.y"]})
    np.testing.assert_array_equal(
        arrays(path, workload, tmp_path)["muons"], arrays(tmp_path / "usual.parquet", MUONS, tmp_path)["muons"]
    )


def test_primaries_for_a_model_are_in_the_columns_that_its_run_was_trained_on(tmp_path: Path) -> None:
    path, events = tmp_path / "flat.parquet", make_events([1, 2, 3])
    pq.write_table(flat_table(events), path)
    (found,) = read_primaries(path, "flat", 0, schema(FLAT), None)
    np.testing.assert_array_equal(found.primary_E4, [event.primary for event in events])
    assert found.ids_E2.tolist() == [[event.major, event.minor] for event in events]
    (counted,) = read_primaries(path, "flat", 0, schema(FLAT), "mu_e")
    assert counted.counts_E is not None
    assert counted.counts_E.tolist() == [1, 2, 3]
