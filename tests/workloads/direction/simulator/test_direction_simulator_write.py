import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decoded_files import decoded, planned

from common.config import StreamConfig
from common.errors import BadInputError
from common.files.layout import schema_of
from workloads.base.dataset import Written
from workloads.direction.columns import CASCADE, CLASSICAL_FITS, DIRECTION, TRACK
from workloads.direction.geometry import GEOMETRY_FILE, hex_geometry, icecube_geometry, read_geometry
from workloads.direction.simulator import write
from workloads.direction.simulator.plan import EventsPlan, file_rows
from workloads.direction.simulator.write import write_dataset, write_file, write_sample


def digests(out: Path) -> dict[str, str]:
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in out.rglob("*")
        if path.is_file()
    }


def read(out: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(out.glob("*.parquet"))])


def test_files_have_the_converted_layout_and_the_sensors_beside_them(tmp_path: Path) -> None:
    write_dataset(tmp_path, EventsPlan(6, 2, seed=1))

    assert sorted(digests(tmp_path)) == ["events_00000.parquet", "events_00001.parquet", GEOMETRY_FILE]
    assert pq.read_schema(tmp_path / "events_00000.parquet").remove_metadata() == schema_of(DIRECTION.with_all_stored())
    assert np.array_equal(read_geometry(tmp_path / GEOMETRY_FILE).position_S3, icecube_geometry().position_S3)


def test_the_other_array_has_its_own_sensors(tmp_path: Path) -> None:
    write_dataset(tmp_path, EventsPlan(60, 1, seed=1, array="hex"))
    sensors = read(tmp_path)["pulses"].combine_chunks().values.field("sensor_id").to_numpy()

    assert np.array_equal(read_geometry(tmp_path / GEOMETRY_FILE).position_S3, hex_geometry().position_S3)
    assert 5160 < sensors.max() < 5460


def test_rows_hold_the_simulated_events(tmp_path: Path) -> None:
    plan = EventsPlan(20, 1, seed=1, num_cascades=10)
    write_dataset(tmp_path, plan)
    table = read(tmp_path)
    (rows,) = file_rows(plan, 0)
    pulses = table["pulses"].combine_chunks()

    assert table["event_id"].to_pylist() == rows.event_id_E.tolist()
    assert table["enriched"].to_pylist() == rows.added_E.tolist()
    assert table["topology"].to_pylist() == [TRACK if one else CASCADE for one in rows.events.truth.is_track_E]
    for name, expected in (("azimuth", "azimuth_E"), ("zenith", "zenith_E"), ("true_energy", "energy_gev_E")):
        assert np.array_equal(table[name].to_numpy(), getattr(rows.events.truth, expected).astype(np.float32))
    assert np.array_equal(np.diff(pulses.offsets.to_numpy()), rows.events.counts_E)
    for name, expected in (
        ("sensor_id", "sensor_P"),
        ("time_ns", "time_ns_P"),
        ("charge_pe", "charge_pe_P"),
        ("is_auxiliary", "auxiliary_P"),
    ):
        assert np.array_equal(pulses.values.field(name).to_numpy(zero_copy_only=False), getattr(rows.events, expected))
    assert table["classical_fits"].to_pylist() == [[0.0] * len(CLASSICAL_FITS)] * 30


def test_the_decoder_takes_every_row_and_finds_its_pulses_in_order(tmp_path: Path) -> None:
    plan = EventsPlan(40, 1, seed=1)
    write_dataset(tmp_path, plan)
    stream = StreamConfig(shuffle=False, slot_mib=1.0)
    units = planned([tmp_path / "events_00000.parquet"], DIRECTION, stream)
    (rows,) = file_rows(plan, 0)

    taken = decoded(units, DIRECTION, stream, tmp_path)
    assert [(one.tally.rows_read, one.tally.quarantined, one.tally.outliers) for one in taken] == [(40, 0, 0)]
    assert np.array_equal(taken[0].arrays.offsets, np.cumsum([0, *rows.events.counts_E]))
    assert np.array_equal(taken[0].arrays.particle_columns["sensor"][:, 0], rows.events.sensor_P)
    assert sum(one.arrays.particle_columns["opens_sensor"].sum() for one in taken) == sum(
        len(np.unique(sensors)) for sensors in np.split(rows.events.sensor_P, np.cumsum(rows.events.counts_E)[:-1])
    )


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        write_dataset(tmp_path / name, EventsPlan(60, 3, seed, num_cascades=9))
    one, other = digests(tmp_path / "one"), digests(tmp_path / "other")

    assert one == digests(tmp_path / "two")
    assert set(one.values()) & set(other.values()) == {one[GEOMETRY_FILE]}


def test_a_file_made_alone_has_the_bytes_it_has_in_its_data_set(tmp_path: Path) -> None:
    plan = EventsPlan(31, 3, seed=3, num_cascades=7)
    write_dataset(tmp_path / "all", plan)
    (tmp_path / "alone").mkdir()
    write_file(tmp_path / "alone" / "events_00001.parquet", plan, 1)

    assert digests(tmp_path / "alone").items() <= digests(tmp_path / "all").items()


def test_progress_hears_of_every_file_and_the_sum_is_returned(tmp_path: Path) -> None:
    heard: list[Written] = []
    total = write_dataset(tmp_path, EventsPlan(11, 2, seed=1), on_file=heard.append)

    assert [written.num_events for written in heard] == [6, 5]
    assert total.num_files == 2
    assert total.num_events == 11
    assert total.num_particles == sum(len(row) for row in read(tmp_path)["pulses"].to_pylist())
    assert total.num_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))


def test_an_interrupted_file_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(write, "table_of", broken)
    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path, EventsPlan(10, 1, seed=1))

    assert list(digests(tmp_path)) == [GEOMETRY_FILE]


def test_an_earlier_data_set_is_replaced_only_on_request_and_then_wholly(tmp_path: Path) -> None:
    write_dataset(tmp_path, EventsPlan(4, 4, seed=1))
    before = digests(tmp_path)
    with pytest.raises(BadInputError, match="--force"):
        write_dataset(tmp_path, EventsPlan(2, 1, seed=2))
    assert digests(tmp_path) == before

    write_dataset(tmp_path, EventsPlan(2, 1, seed=2), overwrite=True)
    assert sorted(digests(tmp_path)) == ["events_00000.parquet", GEOMETRY_FILE]

    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(BadInputError, match=r"no simulated neutrino events, such as thesis\.tex"):
        write_dataset(tmp_path, EventsPlan(2, 1, seed=2), overwrite=True)


def test_a_sample_is_one_file_of_natural_events_with_their_classical_fits(tmp_path: Path) -> None:
    write_sample(tmp_path, 5, 2)
    table = pq.read_table(tmp_path / "events_00000.parquet")

    assert table.num_rows == 5
    assert all(any(fits) for fits in table["classical_fits"].to_pylist())
    assert not any(table["enriched"].to_pylist())
