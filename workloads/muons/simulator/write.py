"""Data sets of simulated bundles in the production schema and directory layout.

    OUT/0000000-0000999/bundles_0000000.parquet
    OUT/0000000-0000999/bundles_0000001.parquet
    OUT/0001000-0001999/bundles_0001000.parquet

A directory is named after its range of a thousand file numbers. As in production, not all of them exist:
a range holds its first ``files_per_range`` numbers, and the next file opens the next range.

A file depends only on the configuration, the seed, its index and its number of rows: each can be written separately
and in any order. Same versions of numpy and pyarrow on the same kind of CPU: same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, sqrt
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.errors import BadInputError
from common.options import OutputPath
from workloads.base.dataset import (
    Written,
    check_request,
    prepare_folder,
    share,
    simulate_shown,
    write_files,
    write_tables,
)
from workloads.base.random_streams import file_stream
from workloads.muons.simulator.config import PRESETS, DepthKind, SimulatorConfig
from workloads.muons.simulator.config import preset as preset_named
from workloads.muons.simulator.muons import SimulatedBundles, sample_primaries, shower_depths_m, simulate_showers
from workloads.muons.simulator.muons import simulate as simulate_bundles

SCHEMA = pa.schema(
    [
        ("primary_major_id", pa.uint64()),
        ("primary_minor_id", pa.uint64()),
        ("primary", pa.list_(pa.float32())),
        ("muons", pa.list_(pa.list_(pa.float32()))),
    ]
)
"""Production columns: ``primary`` = [E_GeV, zenith_rad, mass_A, depth_m], a muon = [E_GeV, x_m, y_m]."""

ROW_GROUP_ROWS = 10_000

COMPRESSION = "snappy"
"""Compression of the files. Floats hardly compress: zstd would save an eighth of the bytes for a sixth more writing
time. A dictionary would take four times as long and make the file larger, so there is none."""

NUMBERS_PER_RANGE = 1000
MAX_DEPTHS = 1000
SAMPLE_PRESET = "bench"
_OWN_RANGE = re.compile(r"\d{7,}-\d{7,}")
_OWN_FILE = re.compile(r"bundles_\d{7,}\.parquet(\.part)?")


@dataclass(frozen=True)
class DatasetPlan:
    """Numbers of rows and files of a data set. Raises BadInputError."""

    num_events: int
    """Rows of the whole data set."""
    num_files: int
    seed: int
    depths_per_shower: int = 0
    """Rows of a shower, which share its id; 0: each row is a separate event."""
    files_per_range: int = 0
    """Files in a directory; 0: about the square root of ``num_files``, so that small demos have several directories."""

    def __post_init__(self) -> None:
        check_request(self.num_events, self.num_files, self.seed)
        if not 0 <= self.files_per_range <= NUMBERS_PER_RANGE:
            raise BadInputError(f"files_per_range = {self.files_per_range}: must be 0 to {NUMBERS_PER_RANGE}")
        if not 0 <= self.depths_per_shower <= MAX_DEPTHS:
            raise BadInputError(f"rows per shower = {self.depths_per_shower}: must be 0 to {MAX_DEPTHS}")
        if self.num_events % self.rows_per_unit:
            fitting = ceil(self.num_events / self.rows_per_unit) * self.rows_per_unit
            raise BadInputError(
                f"events = {self.num_events} are not whole showers of {self.depths_per_shower} rows: use {fitting}"
            )
        if self.num_events // self.rows_per_unit < self.num_files:
            raise BadInputError(
                f"{self.num_events // self.rows_per_unit} showers for {self.num_files} files: "
                "every file needs at least one"
            )

    @property
    def rows_per_unit(self) -> int:
        """Number of rows that must be in one file."""
        return max(self.depths_per_shower, 1)

    def num_rows(self, file_index: int) -> int:
        """Number of rows of one file: equal shares; the first files take one more event or shower of a remainder."""
        return share(self.num_events // self.rows_per_unit, self.num_files, file_index) * self.rows_per_unit

    def relative_path(self, file_index: int) -> Path:
        """Range directory and name of one file."""
        files_per_range = self.files_per_range or min(ceil(sqrt(self.num_files)), NUMBERS_PER_RANGE)
        range_index, place = divmod(file_index, files_per_range)
        first = range_index * NUMBERS_PER_RANGE
        return Path(f"{first:07d}-{first + NUMBERS_PER_RANGE - 1:07d}") / f"bundles_{first + place:07d}.parquet"


def write_sample(folder: Path, events: int, seed: int) -> None:
    """Write one file of events of the preset `bench`."""
    write_dataset(folder, preset_named(SAMPLE_PRESET), DatasetPlan(events, 1, seed), overwrite=True)


def write_dataset(out: Path, config: SimulatorConfig, plan: DatasetPlan, *, overwrite: bool = False) -> Written:
    """Write all files.

    Raises BadInputError if ``out`` holds files already; with ``overwrite``, if it holds any but those of this
    writer, which are removed first.
    """
    prepare_folder(out, overwrite=overwrite, own_file=_OWN_FILE, own_folder=_OWN_RANGE, content="simulated bundles")
    return write_files(plan.num_files, lambda index: write_file(out / plan.relative_path(index), config, plan, index))


def write_file(path: Path, config: SimulatorConfig, plan: DatasetPlan, file_index: int) -> Written:
    """Write one file of the data set, completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = _row_groups(_tables(config, plan, file_index))
    counted = (
        (table, table.num_rows, sum(len(chunk.flatten()) for chunk in table["muons"].chunks)) for table in tables
    )
    options = {"compression": COMPRESSION, "use_dictionary": False, "write_page_checksum": True}
    return write_tables(path, SCHEMA, counted, ROW_GROUP_ROWS, **options)


def to_table(bundles: SimulatedBundles, major_id: int, minor_id_E: npt.NDArray[np.uint64]) -> pa.Table:
    """Rows in the production schema, without a copy of the muons."""
    num_rows, num_muons = len(bundles), len(bundles.muons_P3)
    primary = pa.ListArray.from_arrays(
        pa.array(np.arange(num_rows + 1, dtype=np.int32) * 4), pa.array(bundles.primary_E4.reshape(-1))
    )
    muon = pa.ListArray.from_arrays(
        pa.array(np.arange(num_muons + 1, dtype=np.int32) * 3), pa.array(bundles.muons_P3.reshape(-1))
    )
    offsets = np.zeros(num_rows + 1, np.int32)
    np.cumsum(bundles.counts_E, out=offsets[1:])
    muons = pa.ListArray.from_arrays(pa.array(offsets), muon)
    major_id_E = np.full(num_rows, major_id, np.uint64)
    return pa.Table.from_arrays([pa.array(major_id_E), pa.array(minor_id_E), primary, muons], schema=SCHEMA)


def _tables(config: SimulatorConfig, plan: DatasetPlan, file_index: int) -> Iterator[pa.Table]:
    """Rows of one file, about a row group at a time. Id: (file index, event or shower in the file)."""
    rng = file_stream(plan.seed, file_index)
    num_units = plan.num_rows(file_index) // plan.rows_per_unit
    units_per_table = max(ROW_GROUP_ROWS // plan.rows_per_unit, 1)
    depths_m = shower_depths_m(plan.depths_per_shower)
    for first in range(0, num_units, units_per_table):
        primaries = sample_primaries(min(units_per_table, num_units - first), config, rng)
        minor_id = np.arange(first, first + len(primaries), dtype=np.uint64)
        if plan.depths_per_shower:
            bundles = simulate_showers(primaries, depths_m, config, rng)
            minor_id = np.repeat(minor_id, plan.depths_per_shower)
        else:
            bundles = simulate_bundles(primaries, config, rng)
        yield to_table(bundles, file_index, minor_id)


def _row_groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables of the same rows with exactly ROW_GROUP_ROWS each, the last one shorter."""
    pending: list[pa.Table] = []
    num_rows = 0
    for table in tables:
        pending.append(table)
        num_rows += table.num_rows
        while num_rows >= ROW_GROUP_ROWS:
            rows = pa.concat_tables(pending)
            yield rows.slice(0, ROW_GROUP_ROWS)
            num_rows -= ROW_GROUP_ROWS
            pending = [rows.slice(ROW_GROUP_ROWS)] if num_rows else []
    if pending:
        yield pa.concat_tables(pending)


def simulate_dataset(
    out: Path,
    *,
    events: int,
    files: int,
    seed: int,
    preset: str = SAMPLE_PRESET,
    showers: int = 0,
    depth_kind: DepthKind = "vertical",
    files_per_range: int = 0,
    force: bool = False,
) -> Written:
    """Write muon bundles to the folder ``out``. Raises BadInputError.

    ``showers``: rows of a shower, each at another depth; 0: every row is its own event.
    """
    config = replace(preset_named(preset), depth_kind=depth_kind)
    plan = DatasetPlan(events, files, seed, showers, files_per_range)
    return write_dataset(out, config, plan, overwrite=force)


@click.command(name="simulate")
@click.argument("out", type=OutputPath(file_okay=False))
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default="bench",
    show_default=True,
    help="Spectrum: corsika (most rows empty), bench (0 to 1,000 muons), heavy (tail to 10,000 muons), "
    "flat (every decade of energy), h3a (natural flux above 10 TeV).",
)
@click.option("--events", default=200_000, show_default=True, help="Rows in total.")
@click.option("--files", default=8, show_default=True, help="Files in total.")
@click.option("--seed", default=0, show_default=True, help="Same seed, same bytes.")
@click.option(
    "--showers",
    default=0,
    metavar="DEPTHS",
    help="Shower mode: record each shower at this many depths, one row each, all with its id "
    "(production has up to 100). 0: every row is its own event.",
    show_default=True,
)
@click.option(
    "--depth-kind",
    type=click.Choice(get_args(DepthKind)),
    default="vertical",
    show_default=True,
    help="Meaning of the depth column: metres below the surface, or metres of ice along the track.",
)
@click.option(
    "--files-per-range",
    default=0,
    show_default=True,
    help="Files in one range directory, at most 1000. 0: about the square root of --files.",
)
@click.option("--force", is_flag=True, help="Replace a data set that an earlier run wrote to OUT.")
def simulate(out: Path, **options: Any) -> None:
    """Write muon bundles with known truth to OUT, in the production schema and directory layout.

    A toy for demos and tests, not a simulation of a detector: see docs/explanation/physics.md.

    \b
    Example:
      icestream simulate demo-data --preset bench --events 400000 --files 16 --seed 1
    """
    simulate_shown(out, "muons", lambda: simulate_dataset(out, **options))
