"""Neutrino events in the layouts of Kaggle and GraphNeT."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from icestream.commands.convert import convert
from workloads.direction.geometry import GEOMETRY_FILE, Geometry, write_geometry

NUM_SENSORS = 50

PULSE = np.dtype([("sensor_id", "<i2"), ("time", "<i8"), ("charge", "<f8"), ("auxiliary", "|b1")])


@dataclass(frozen=True)
class Neutrino:
    """One event. ``pulses`` (P,) of PULSE."""

    event_id: int
    azimuth: float
    zenith: float
    pulses: np.ndarray


def neutrinos(counts: Sequence[int], seed: int = 0, *, first_id: int = 0) -> list[Neutrino]:
    """Events with that many pulses, in no order, some of them at the same sensor and time."""
    random = np.random.default_rng(seed)
    events = []
    for number, count in enumerate(counts):
        pulses = np.empty(count, PULSE)
        pulses["sensor_id"] = random.integers(0, NUM_SENSORS, count)
        pulses["time"] = random.integers(5000, 5000 + 2 * count, count)
        pulses["charge"] = random.integers(1, 200, count) / 8
        pulses["auxiliary"] = random.random(count) < 0.5
        events.append(Neutrino(first_id + 7 * number, random.uniform(0, 2 * np.pi), random.uniform(0, np.pi), pulses))
    return events


def sensors() -> Geometry:
    sensor = np.arange(NUM_SENSORS, dtype=np.float32)
    return Geometry(np.stack([sensor % 7 * 125.3, sensor % 5 * 125.7, sensor * 17 - 400.4], 1).astype(np.float32))


def write_kaggle(
    folder: Path,
    batches: Mapping[int, Sequence[Neutrino]],
    *,
    name: str = "train",
    meta_options: Mapping[str, Any] | None = None,
    angles: bool = True,
    number: Any = np.float64,
) -> Path:
    """Write a data set: a file of pulses for each batch, and the tables of events and sensors."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    meta = []
    for batch, events in batches.items():
        bounds = np.cumsum([0, *(len(event.pulses) for event in events)])
        columns = {"batch_id": np.full(len(events), batch), "event_id": [event.event_id for event in events]}
        columns |= {"first_pulse_index": bounds[:-1], "last_pulse_index": bounds[1:] - 1}
        if angles:
            columns |= {key: values.astype(number) for key, values in angles_of(events).items()}
        meta.append(pa.table(columns))
        write_batch(folder / name / f"batch_{batch}.parquet", events)
    pq.write_table(pa.concat_tables(meta), folder / f"{name}_meta.parquet", **(meta_options or {}))
    write_geometry(folder / GEOMETRY_FILE, sensors())
    return folder


def angles_of(events: Sequence[Neutrino]) -> dict[str, np.ndarray]:
    return {name: np.array([getattr(event, name) for event in events]) for name in ("azimuth", "zenith")}


def flattened(events: Sequence[Neutrino]) -> tuple[np.ndarray, np.ndarray]:
    """Pulses of all events, and the id of each one's event."""
    pulses = [event.pulses for event in events]
    return np.concatenate(pulses), np.repeat([event.event_id for event in events], list(map(len, pulses)))


def write_batch(path: Path, events: Sequence[Neutrino], rows: int = 1 << 20, **changed: Any) -> None:
    """Write the file of a batch's pulses; ``changed`` are columns to replace, None: to leave out."""
    pulses, event_id = flattened(events)
    columns = {key: pulses[key] for key in PULSE.names or ()} | {"event_id": event_id}
    kept = {key: values for key, values in (columns | changed).items() if values is not None}
    pq.write_table(pa.table(kept), path, row_group_size=rows)


def write_flat(folder: Path, events: Sequence[Neutrino], *, part: int = 0, **truth: Any) -> Path:
    """Write GraphNeT's flat tables as IceCube's: folders `pulses` and `truth`. ``truth`` are columns to replace."""
    pulses, event_no = flattened(events)
    place = sensors().position_S3[pulses["sensor_id"]].astype(np.float64)
    columns = {
        **dict(zip(("dom_x", "dom_y", "dom_z"), place.T, strict=True)),
        "dom_time": pulses["time"].astype(np.float64),
        "charge": pulses["charge"],
        "hlc": (~pulses["auxiliary"]).astype(np.int64),
        "event_no": event_no.astype("u8"),
    }
    table = angles_of(events) | {"event_no": np.array([event.event_id for event in events])} | truth
    kept = {key: values for key, values in table.items() if values is not None}
    for name, one in (("pulses", columns), ("truth", kept)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(one), folder / name / f"{name}_{part}.parquet")
    return folder


def write_database(path: Path, tables: Mapping[str, pa.Table]) -> Path:
    """Write these tables as GraphNeT's SQLiteWriter: without types, and with an index on the events of pulses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        for name, table in tables.items():
            key = " INTEGER PRIMARY KEY" if "truth" in name else ""
            columns = [f'"{column}"{key if column == "event_no" else ""}' for column in table.column_names]
            database.execute(f'CREATE TABLE "{name}" ({", ".join(columns)})')
            rows = zip(*table.to_pydict().values(), strict=True)
            database.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(columns))})', rows)
            if not key:
                database.execute(f'CREATE INDEX "event_no_{name}" ON "{name}" (event_no)')
    return path


def database_of(folder: Path) -> Path:
    """The flat tables of a folder as a database in it."""
    names = ("pulses", "truth")
    return write_database(
        folder / "flat.db", {name: pq.read_table(folder / name / f"{name}_0.parquet") for name in names}
    )


def write_nested(path: Path, events: Sequence[Neutrino], *, ids: bool = False, **lists: Any) -> Path:
    """Write a file of Prometheus: a struct of truth, with angles of travel, and one of lists of photons."""
    place = sensors().position_S3.astype(np.float64)
    rows = []
    for event in events:
        truth = {
            "interaction": 1,
            "initial_state_energy": 100.0,
            "initial_state_type": 14,
            "initial_state_zenith": np.pi - event.zenith,
            "initial_state_azimuth": event.azimuth - np.pi,
            "final_state_energy": [60.0, 40.0],
        }
        where = place[event.pulses["sensor_id"]]
        photons = {
            **{f"sensor_pos_{axis}": where[:, i].tolist() for i, axis in enumerate("xyz")},
            "sensor_id": event.pulses["sensor_id"].astype(np.int64).tolist(),
            "t": event.pulses["time"].astype(np.float64).tolist(),
            "charge": event.pulses["charge"].tolist(),
            "auxiliary": event.pulses["auxiliary"].tolist(),
            **lists,
        }
        rows.append({"mc_truth": truth | ({"event_no": event.event_id} if ids else {}), "photons": photons})
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def expected(event: Neutrino) -> dict[str, Any]:
    """Row of the imported file, without the columns that no import fills."""
    pulses = event.pulses[np.lexsort((event.pulses["time"], event.pulses["sensor_id"]))]
    return {
        "event_id": event.event_id,
        "azimuth": float(np.float32(event.azimuth)),
        "zenith": float(np.float32(event.zenith)),
        "pulses": [
            {"sensor_id": sensor, "time_ns": float(time), "charge_pe": charge, "is_auxiliary": auxiliary}
            for sensor, time, charge, auxiliary in pulses.tolist()
        ],
    }


def events_in(path: Path) -> list[dict[str, Any]]:
    """Rows of an imported file, in the form of expected()."""
    columns = ("event_id", "azimuth", "zenith", "pulses")
    rows: list[dict[str, Any]] = pq.read_table(path, columns=[*columns]).to_pylist()
    return rows


def assert_imported(folder: Path, pattern: str, events: Sequence[Neutrino]) -> None:
    """Angles that are turned are rounded."""
    found = [row for path in sorted(folder.glob(pattern)) for row in events_in(path)]
    for row, event in zip(found, events, strict=True):
        wanted = expected(event)
        for angle in ("azimuth", "zenith"):
            assert abs(row.pop(angle) - wanted.pop(angle)) < 1e-6
        assert row == wanted


def import_with(*arguments: str | Path) -> str:
    """Output of `icestream convert`. Raises its error."""
    result = CliRunner().invoke(convert, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
