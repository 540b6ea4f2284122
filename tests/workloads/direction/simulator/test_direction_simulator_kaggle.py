import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from common.errors import BadInputError
from icestream.cli import cli
from workloads.direction.geometry import GEOMETRY_FILE
from workloads.direction.simulator import kaggle
from workloads.direction.simulator.kaggle import write_kaggle_dataset
from workloads.direction.simulator.plan import EventsPlan
from workloads.direction.simulator.write import write_dataset

PLAN = EventsPlan(21, 2, seed=1, num_cascades=5)


def names(out: Path) -> list[str]:
    return sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())


def test_files_are_those_of_the_contest(tmp_path: Path) -> None:
    write_kaggle_dataset(tmp_path, PLAN)

    assert names(tmp_path) == sorted(
        [GEOMETRY_FILE, "train/batch_1.parquet", "train/batch_2.parquet", "train_meta.parquet"]
    )
    batch = pq.read_schema(tmp_path / "train/batch_1.parquet")
    assert batch.remove_metadata() == pa.schema(
        [
            ("sensor_id", pa.int16()),
            ("time", pa.int64()),
            ("charge", pa.float64()),
            ("auxiliary", pa.bool_()),
            ("event_id", pa.int64()),
        ]
    )
    note = json.loads(batch.metadata[b"pandas"])
    assert note["index_columns"] == ["event_id"]
    assert [column["name"] for column in note["columns"]] == batch.names
    meta = pq.read_schema(tmp_path / "train_meta.parquet")
    assert meta.names == ["batch_id", "event_id", "first_pulse_index", "last_pulse_index", "azimuth", "zenith"]


def test_the_events_are_those_of_the_converted_layout_by_time(tmp_path: Path) -> None:
    write_kaggle_dataset(tmp_path / "kaggle", PLAN)
    write_dataset(tmp_path / "converted", PLAN)
    meta = pq.read_table(tmp_path / "kaggle/train_meta.parquet").to_pylist()
    converted = [
        row for index in (0, 1) for row in pq.read_table(tmp_path / f"converted/events_{index:05d}.parquet").to_pylist()
    ]
    batches = {number: pq.read_table(tmp_path / f"kaggle/train/batch_{number}.parquet") for number in (1, 2)}

    assert len(meta) == len(converted) == 26
    for one, event in zip(meta, converted, strict=True):
        first, last = one["first_pulse_index"], one["last_pulse_index"]
        pulses = batches[one["batch_id"]].slice(first, last - first + 1)
        assert one["event_id"] == event["event_id"]
        assert set(pulses["event_id"].to_pylist()) == {event["event_id"]}
        assert one["azimuth"] == pytest.approx(event["azimuth"], rel=1e-6)
        assert one["zenith"] == pytest.approx(event["zenith"], rel=1e-6)
        assert np.all(np.diff(pulses["time"].to_numpy()) >= 0)
        columns = (pulses[name].to_pylist() for name in ("sensor_id", "time", "charge", "auxiliary"))
        assert sorted(zip(*columns, strict=True)) == sorted(tuple(pulse.values()) for pulse in event["pulses"])
    for number, table in batches.items():
        of_batch = [one for one in meta if one["batch_id"] == number]
        bounds = [(one["first_pulse_index"], one["last_pulse_index"] + 1) for one in of_batch]
        assert bounds[0][0] == 0
        assert bounds[-1][1] == table.num_rows
        assert all(before[1] == after[0] for before, after in pairwise(bounds))


def test_convert_makes_the_converted_layout_of_it(tmp_path: Path) -> None:
    write_kaggle_dataset(tmp_path / "kaggle", PLAN)
    write_dataset(tmp_path / "simulated", PLAN)
    arguments = ["convert", str(tmp_path / "kaggle"), str(tmp_path / "converted")]
    assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 0

    same = ["event_id", "azimuth", "zenith", "pulses"]
    for index in (0, 1):
        simulated = pq.read_table(tmp_path / f"simulated/events_{index:05d}.parquet", columns=same)
        assert pq.read_table(tmp_path / f"converted/batch_{index + 1}.parquet", columns=same).equals(simulated)


def test_rows_count_on_over_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_kaggle_dataset(tmp_path / "one", PLAN)
    monkeypatch.setattr("workloads.direction.simulator.plan.ROW_GROUP_EVENTS", 4)
    monkeypatch.setattr("workloads.direction.simulator.plan.MOST_BRIGHT_A_ROW_GROUP", 4)
    write_kaggle_dataset(tmp_path / "more", PLAN)

    assert pq.ParquetFile(tmp_path / "more/train/batch_1.parquet").num_row_groups == 4
    for name in ("train_meta.parquet", "train/batch_2.parquet"):
        assert pq.read_table(tmp_path / "one" / name).equals(pq.read_table(tmp_path / "more" / name))


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_kaggle_dataset(tmp_path / name, PLAN)

    for name in names(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_data_set_in_one_layout_replaces_one_in_the_other(tmp_path: Path) -> None:
    write_kaggle_dataset(tmp_path, PLAN)
    write_dataset(tmp_path, EventsPlan(2, 1, seed=1), overwrite=True)

    assert names(tmp_path) == ["events_00000.parquet", GEOMETRY_FILE]
    assert not (tmp_path / "train").exists()


def test_an_interrupted_batch_leaves_neither_itself_nor_a_table_of_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kaggle, "_pulses_table", broken)
    with pytest.raises(KeyboardInterrupt):
        write_kaggle_dataset(tmp_path, PLAN)

    assert names(tmp_path) == [GEOMETRY_FILE]


def test_files_of_the_contest_itself_are_never_removed(tmp_path: Path) -> None:
    write_kaggle_dataset(tmp_path, PLAN)
    batch = tmp_path / "train" / "batch_2.parquet"
    pq.write_table(pq.read_table(batch).replace_schema_metadata({}), batch)
    before = names(tmp_path)
    for write in (write_kaggle_dataset, write_dataset):
        with pytest.raises(BadInputError, match=r"batch_2\.parquet was not simulated: choose another directory"):
            write(tmp_path, PLAN, overwrite=True)
    assert names(tmp_path) == before
