"""Speed of the importers against Arrow reading and writing the same bytes.

Question: events a second, on one core, from the layouts of Kaggle and GraphNeT to that of icestream, by
`icestream convert`. Asked: 50,000 for events of 80 to 160 pulses.

Command, from the repository's root:

    OMP_NUM_THREADS=1 python -m benchmarks.bench_import [--events 100000] [--repeats 3]

Table: median CPU time an event of the import; of Arrow alone, which reads the columns that the import needs (not of
SQLite) and writes those of the imported file with the same options; the ratio of both; peak memory above that of the
start (of the first layout: `--layout` for one alone). "no sensors" is GraphNeT's without a table of sensors: a first
pass finds them. Events have 101 pulses in the mean, lognormal, on 5,160 sensors; a row group is a whole file, as in
Kaggle's. For SQLite also pulses a second of CPU time, one repeat after the other by ADBC's driver, as the importer
reads them, and by the standard library's sqlite3 into arrays; median (least to most).

Reading: the import also joins, checks ranges, ids, sensors and numbers, sorts by sensor and time, and keeps its memory
bounded. What is left above Arrow is mostly the sort, and gathering by it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import resource
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.files.layout import schema_of, writer_options
from icestream.commands.convert import foreign_inputs, import_files
from workloads.direction.columns import DIRECTION
from workloads.direction.foreign_tables import sqlite_tables
from workloads.direction.geometry import GEOMETRY_FILE, Geometry, write_geometry
from workloads.direction.importers import EVENT

ASKED = 50_000
ROWS_PER_GROUP = 8192
SENSORS = 5160
PULSES = ("dom_x", "dom_y", "dom_z", "dom_time", "charge", "hlc")


def main() -> None:
    parser = argparse.ArgumentParser(description="The importers against Arrow.")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layout", choices=LAYOUTS)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    print(f"{'layout':<12}{'import us/event':>16}{'Arrow us/event':>16}{'ratio':>7}{'events/s':>10}{'MiB':>6}")
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for layout in [arguments.layout] if arguments.layout else LAYOUTS:
            folder = Path(name) / layout
            folder.mkdir()
            # In a process of its own: the peak of memory is that of the import.
            writer = multiprocessing.get_context("spawn").Process(
                target=LAYOUTS[layout], args=(folder, arguments.events)
            )
            writer.start()
            writer.join()
            imported, alone = [], []
            before = peak_mib()
            for repeat in range(arguments.repeats):
                out = folder / f"out-{repeat}"
                imported.append(cpu_s(lambda: by_import(folder, out)) / arguments.events)  # noqa: B023
            memory = peak_mib() - before
            table = pq.read_table(sorted(out.glob("*.parquet"))).cast(schema_of(DIRECTION.with_all_stored()))
            for _ in range(arguments.repeats):
                alone.append(cpu_s(lambda: by_arrow(folder, table)) / arguments.events)  # noqa: B023
            ours, arrow = statistics.median(imported), statistics.median(alone)
            found[layout] = round(1 / ours)
            times = f"{layout:<12}{ours * 1e6:>16.1f}{arrow * 1e6:>16.1f}{arrow / ours:>7.2f}"
            print(f"{times}{1 / ours:>10,.0f}{memory:>6.0f}")
    print(json.dumps({"benchmark": "import", "events_a_second": found, "asked": ASKED}))
    if arguments.layout in (None, "sqlite"):
        readers(arguments.events, arguments.repeats)


def readers(num_events: int, repeats: int) -> None:
    rates: dict[str, list[float]] = {"ADBC": [], "sqlite3": []}
    with tempfile.TemporaryDirectory() as name:
        database = write_database(Path(name), num_events)
        for _ in range(repeats):
            for reader, read in zip(rates, (by_adbc, by_standard_library), strict=True):
                started_s = time.process_time()
                rates[reader].append(read(database) / (time.process_time() - started_s))
    for reader, found in rates.items():
        least, median, most = (f"{rate:,.0f}" for rate in (min(found), statistics.median(found), max(found)))
        print(f"{reader:<12}{median:>16} pulses/s ({least} to {most})")
    medians = {reader: round(statistics.median(found)) for reader, found in rates.items()}
    print(json.dumps({"benchmark": "sqlite", "pulses_a_second": medians}))


def cpu_s(work: Callable[[], object]) -> float:
    started_s = time.process_time()
    work()
    return time.process_time() - started_s


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def by_import(folder: Path, out: Path) -> None:
    found = foreign_inputs([str(folder)], None)
    assert found is not None
    with contextlib.redirect_stdout(io.StringIO()):
        import_files(found, out, rows_per_group=ROWS_PER_GROUP, most=1 << 18, force=False)


def by_arrow(folder: Path, table: pa.Table) -> None:
    for path in folder.rglob("*.parquet"):
        if not path.parent.name.startswith("out"):
            for _ in pq.ParquetFile(path).iter_batches(1 << 18, use_threads=False):
                pass
    with pq.ParquetWriter(folder / "alone", table.schema, **writer_options(table.schema, "zstd")) as writer:
        writer.write_table(table, row_group_size=ROWS_PER_GROUP)


def by_adbc(database: Path) -> int:
    table = next(table for table in sqlite_tables(database, EVENT) if table.name == "pulses").table
    kinds = {EVENT: "integers"} | dict.fromkeys(PULSES, "numbers")
    return sum(batch.num_rows for batch in table.batches(kinds))


def by_standard_library(database: Path) -> int:
    rows = 0
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro&immutable=1", uri=True)) as connection:
        found = connection.execute(f"SELECT {EVENT}, {', '.join(PULSES)} FROM pulses ORDER BY {EVENT}")
        while piece := found.fetchmany(1 << 16):
            rows += len(np.array(piece))
    return rows


def make_pulses(num_events: int) -> dict[str, np.ndarray]:
    """Columns of Kaggle's files for events of a realistic size, in order of time inside an event."""
    random = np.random.default_rng(1)
    counts = np.clip(random.lognormal(4.3, 0.8, num_events), 5, 20_000).astype(np.int64)
    event = np.repeat(np.arange(num_events), counts)
    time_ns = random.normal(11_000, 2_500, len(event)).astype(np.int64)
    order = np.lexsort((time_ns, event))
    charge = random.gamma(4, 0.25, len(event)).astype(np.float16).astype(np.float64)
    return {
        "counts": counts,
        "sensor_id": random.integers(0, SENSORS, len(event)).astype(np.int16),
        "time": time_ns[order],
        "charge": charge,
        "auxiliary": random.random(len(event)) < 0.7,
        "event_id": np.repeat(np.arange(num_events) * 37 + 11, counts),
        "azimuth": random.uniform(0, 2 * np.pi, num_events),
        "zenith": np.arccos(random.uniform(-1, 1, num_events)),
    }


def positions() -> np.ndarray:
    sensor = np.arange(SENSORS)
    string = sensor // 60
    return np.stack([string % 10 * 125.0, string // 10 * 125.0, 500.0 - sensor % 60 * 17.0], 1)


def write_kaggle(folder: Path, num_events: int) -> None:
    columns = make_pulses(num_events)
    last = np.cumsum(columns["counts"])
    pulses = {name: columns[name] for name in ("sensor_id", "time", "charge", "auxiliary", "event_id")}
    (folder / "train").mkdir()
    pq.write_table(pa.table(pulses), folder / "train" / "batch_1.parquet", row_group_size=1 << 26)
    meta = {
        "batch_id": np.ones(num_events, np.int64),
        "event_id": np.arange(num_events) * 37 + 11,
        "first_pulse_index": last - columns["counts"],
        "last_pulse_index": last - 1,
        "azimuth": columns["azimuth"],
        "zenith": columns["zenith"],
    }
    pq.write_table(pa.table(meta), folder / "train_meta.parquet")
    write_geometry(folder / GEOMETRY_FILE, Geometry(positions().astype(np.float32)))


def write_graphnet(folder: Path, num_events: int) -> None:
    """Flat tables as GraphNeT's ParquetWriter makes them from IceCube's files: every number a double."""
    write_flat_tables(folder, num_events)
    write_geometry(folder / GEOMETRY_FILE, Geometry(positions().astype(np.float32)))


def write_flat_tables(folder: Path, num_events: int) -> None:
    """The same without a table of sensors: a first pass finds them."""
    columns = make_pulses(num_events)
    place = positions()[columns["sensor_id"]]
    pulses = {
        **{name: place[:, i] for i, name in enumerate(("dom_x", "dom_y", "dom_z"))},
        "dom_time": columns["time"].astype(np.float64),
        "charge": columns["charge"],
        "hlc": (~columns["auxiliary"]).astype(np.int64),
        "event_no": columns["event_id"],
    }
    truth = {"azimuth": columns["azimuth"], "zenith": columns["zenith"], "event_no": np.arange(num_events) * 37 + 11}
    for name, table in (("pulses", pulses), ("truth", truth)):
        (folder / name).mkdir()
        pq.write_table(pa.table(table), folder / name / f"{name}_0.parquet", row_group_size=1 << 26)


def write_database(folder: Path, num_events: int) -> Path:
    """The tables of write_flat_tables() as GraphNeT's SQLiteWriter makes them."""
    made = folder / "made"
    made.mkdir()
    write_flat_tables(made, num_events)
    (folder / "sqlite").mkdir()
    path = folder / "sqlite" / "merged.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for name, key in (("pulses", "NOT NULL"), ("truth", "INTEGER PRIMARY KEY")):
            with pq.ParquetFile(made / name / f"{name}_0.parquet") as file:
                columns = file.schema_arrow.names
                types = [f"{column} {key if column == EVENT else 'FLOAT'}" for column in columns]
                database.execute(f"CREATE TABLE {name} ({', '.join(types)})")
                for batch in file.iter_batches():
                    rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                    database.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows)
        database.execute(f"CREATE INDEX event_no_pulses ON pulses ({EVENT})")
    return path


def write_sqlite(folder: Path, num_events: int) -> None:
    """The same in a database, with a table of sensors."""
    write_database(folder, num_events)
    shutil.rmtree(folder / "made")
    (folder / "sqlite" / "merged.db").rename(folder / "merged.db")
    write_geometry(folder / GEOMETRY_FILE, Geometry(positions().astype(np.float32)))


LAYOUTS = {"kaggle": write_kaggle, "graphnet": write_graphnet, "no sensors": write_flat_tables, "sqlite": write_sqlite}


if __name__ == "__main__":
    main()
