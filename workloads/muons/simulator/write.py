"""Data sets of simulated bundles in the production schema and directory layout.

    OUT/0000000-0000999/bundles_0000000.parquet
    OUT/0000000-0000999/bundles_0000001.parquet
    OUT/0001000-0001999/bundles_0001000.parquet

A directory is named after its range of a thousand file numbers. As in production, not all of them exist:
a range holds its first numbers, as many as there are ranges, and the next file opens the next range.

A file depends only on the configuration, the seed, its index and its number of rows: each can be written separately
and in any order. Same versions of numpy and pyarrow on the same kind of CPU: same bytes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import BadInputError
from common.files.parquet.columns import lists_of
from common.files.rows import offsets_of
from common.options import OutputPath
from common.slow_progress import note
from workloads.base import dataset
from workloads.base.random_streams import file_stream
from workloads.muons.showers.bundles import require_known
from workloads.muons.showers.interactions import MODELS, LibraryName
from workloads.muons.simulator.config import PRESETS, SimulatorConfig
from workloads.muons.simulator.config import preset as preset_named
from workloads.muons.simulator.muons import SimulatedBundles, sample_depths, sample_primaries, simulate_showers
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
"""Most rows of a row group: whole showers."""

COMPRESSION = "snappy"
"""Compression of the files. Floats hardly compress: zstd would save an eighth of the bytes for a sixth more writing
time. A dictionary would take four times as long and make the file larger, so there is none."""

NUMBERS_PER_RANGE = 1000
PROVENANCE = b"icestream.simulation"
"""Key of a file's footer under which stands, as JSON, all that its rows depend on."""
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

    def __post_init__(self) -> None:
        if not 0 <= self.depths_per_shower <= SimulatorConfig.depth_steps:
            raise BadInputError(
                f"rows per shower = {self.depths_per_shower}: must be 0 to {SimulatorConfig.depth_steps}"
            )
        if self.num_events % self.rows_per_unit:
            fitting = ceil(self.num_events / self.rows_per_unit) * self.rows_per_unit
            raise BadInputError(
                f"events = {self.num_events} are not whole showers of {self.depths_per_shower} rows: use {fitting}"
            )
        dataset.check_request(self.num_events // self.rows_per_unit, self.num_files, self.seed)

    @property
    def rows_per_unit(self) -> int:
        """Number of rows that must be in one file."""
        return max(self.depths_per_shower, 1)

    def num_rows(self, file_index: int) -> int:
        """Number of rows of one file: equal shares; the first files take one more event or shower of a remainder."""
        return dataset.share(self.num_events // self.rows_per_unit, self.num_files, file_index) * self.rows_per_unit

    def relative_path(self, file_index: int) -> Path:
        """Range directory and name of one file."""
        files_per_range = min(ceil(sqrt(self.num_files)), NUMBERS_PER_RANGE)  # several directories for small demos, too
        range_index, place = divmod(file_index, files_per_range)
        first = range_index * NUMBERS_PER_RANGE
        return Path(f"{first:07d}-{first + NUMBERS_PER_RANGE - 1:07d}") / f"bundles_{first + place:07d}.parquet"


def write_dataset(out: Path, config: SimulatorConfig, plan: DatasetPlan, *, overwrite: bool = False) -> dataset.Written:
    """Write all files.

    Files of real showers that the same command wrote before it was stopped are kept. Raises BadInputError if ``out``
    holds files already; with ``overwrite``, if it holds any but those of this writer, which are removed first.
    """
    library = LibraryName(config.interactions, config.library) if config.interactions else None
    processes = len(os.sched_getaffinity(0)) if library and library.provenance else 1
    files = {out / plan.relative_path(index): index for index in range(plan.num_files)}
    kept = set(out.rglob("*.parquet")) if library and not overwrite else set()
    for part in out.rglob("bundles_*.part") if library else ():
        part.unlink()  # of a killed command
    if kept and all(path in files and read_provenance(path) == _provenance(config, plan, files[path]) for path in kept):
        note(f"{out}: {len(kept)} of {len(files)} files are there and stay")
    else:
        kept.clear()
        dataset.prepare_folder(
            out, overwrite=overwrite, own_file=_OWN_FILE, own_folder=_OWN_RANGE, content="simulated bundles"
        )
    if library:
        library.folder()  # made once, and not by each process
    missing = [(path, index) for path, index in files.items() if path not in kept]
    return dataset.write_files(partial(write_file, config, plan), missing, processes)


def read_provenance(path: Path) -> dict[str, Any]:
    """Return how a file was simulated; empty if its footer doesn't say so, or is damaged."""
    found: dict[str, Any] = {}
    with suppress(pa.ArrowInvalid, ValueError):
        found = json.loads((pq.read_schema(path).metadata or {}).get(PROVENANCE, b"{}"))
    return found


def _provenance(config: SimulatorConfig, plan: DatasetPlan, file_index: int) -> dict[str, Any]:
    """Return all that a file's rows depend on but for the versions of numpy and pyarrow."""
    library = LibraryName(config.interactions, config.library).provenance if config.interactions else {}
    found: dict[str, Any] = json.loads(json.dumps(asdict(config) | asdict(plan) | {"file": file_index} | library))
    return found


def write_file(config: SimulatorConfig, plan: DatasetPlan, job: tuple[Path, int]) -> dataset.Written:
    """Write the file of this path and index of the data set, completely or not at all."""
    path, file_index = job
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = _tables(config, plan, file_index)
    counted = ((table, table.num_rows, len(table["muons"].combine_chunks().flatten())) for table in tables)
    options: dict[str, Any] = {"compression": COMPRESSION, "use_dictionary": False, "write_page_checksum": True}
    schema = SCHEMA
    if config.interactions:
        schema = SCHEMA.with_metadata({PROVENANCE: json.dumps(_provenance(config, plan, file_index))})
    return dataset.write_tables(path, schema, counted, ROW_GROUP_ROWS, **options)


def to_table(bundles: SimulatedBundles, major_id: int, minor_id_E: npt.NDArray[np.uint64]) -> pa.Table:
    """Rows in the production schema, without a copy of the muons."""
    muons = pa.ListArray.from_arrays(pa.array(offsets_of(bundles.counts_E), pa.int32()), lists_of(bundles.muons_P3))
    ids = pa.array(np.full(len(bundles), major_id, np.uint64)), pa.array(minor_id_E)
    return pa.Table.from_arrays([*ids, lists_of(bundles.primary_E4), muons], schema=SCHEMA)


def _tables(config: SimulatorConfig, plan: DatasetPlan, file_index: int) -> Iterator[pa.Table]:
    """Rows of one file, a row group at a time. Id: (file index, event or shower in the file)."""
    rng = file_stream(plan.seed, file_index)
    num_units = plan.num_rows(file_index) // plan.rows_per_unit
    units_per_table = ROW_GROUP_ROWS // plan.rows_per_unit
    for first in range(0, num_units, units_per_table):
        primaries = sample_primaries(min(units_per_table, num_units - first), config, rng)
        minor_id = np.arange(first, first + len(primaries), dtype=np.uint64)
        if plan.depths_per_shower:
            depth_m_SD = sample_depths(len(primaries), plan.depths_per_shower, config, rng)
            bundles = simulate_showers(primaries, depth_m_SD, config, rng)
            minor_id = np.repeat(minor_id, plan.depths_per_shower)
        else:
            bundles = simulate_bundles(primaries, config, rng)
        yield to_table(bundles, file_index, minor_id)


def simulate_dataset(
    out: Path,
    *,
    events: int,
    files: int,
    seed: int,
    preset: str = "bench",
    showers: int = 0,
    energy: tuple[float, float] | None = None,
    interactions: str | None = None,
    library: int = 1,
    field: bool = False,
    force: bool = False,
) -> dataset.Written:
    """Write muon bundles to the folder ``out``. Raises BadInputError.

    ``showers``: rows of a shower, each at another depth; 0: every row is its own event.
    ``energy``: lowest and highest of the primaries, GeV. ``interactions``, ``library``, ``field``: of real showers.
    """
    config = preset_named(preset)
    if energy is not None:
        if not 0 < energy[0] < energy[1]:
            raise BadInputError(
                f"energy = {energy[0]:g} {energy[1]:g}: the lowest must be above 0, the highest above it"
            )
        config = replace(config, energy_min_gev=energy[0], energy_max_gev=energy[1])
    if config.interactions:
        require_known(config.energy_max_gev, 1.0)
        config = replace(config, interactions=interactions or config.interactions, library=library, field=field)
    elif interactions or field or library != SimulatorConfig.library:
        raise BadInputError(
            f"preset = {preset} is the toy: --interactions, --library and --field are of --preset sibyll"
        )
    plan = DatasetPlan(events, files, seed, showers)
    return write_dataset(out, config, plan, overwrite=force)


@click.command(name="simulate")
@click.argument("out", type=OutputPath(file_okay=False))
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default="bench",
    show_default=True,
    help="sibyll: real showers (needs the package chromo). Of the toy: corsika (most rows empty), bench (0 to 1,000 "
    "muons), heavy (tail to 10,000 muons), flat (every decade of energy), h3a (natural flux above 10 TeV).",
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
    "--energy", nargs=2, type=float, metavar="MIN MAX", help="Energies of the primaries, GeV; else the preset's."
)
@click.option(
    "--interactions",
    type=click.Choice(list(MODELS)),
    help="Model of hadronic interactions of real showers.  [sibyll23d]",
)
@click.option(
    "--library",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Seed of the library of interactions, made once in two minutes: take another one for held-out showers.",
)
@click.option("--field", is_flag=True, help="Real showers in the Earth's magnetic field, South Pole.")
@click.option("--force", is_flag=True, help="Replace a data set that an earlier run wrote to OUT.")
def simulate(out: Path, **options: Any) -> None:
    """Write muon bundles with known truth to OUT, in the production schema and directory layout.

    Real showers have a model's hadronic interactions, decays, and energy loss in ice; the same command goes on where
    one was stopped. The toy is for demos and tests. Both: docs/explanation/physics.md.

    \b
    Examples:
      icestream simulate demo-data --preset bench --events 400000 --files 16 --seed 1
      icestream simulate showers --preset sibyll --events 400000 --files 40 --showers 4 --seed 1
      icestream simulate held-out --preset sibyll --events 40000 --files 8 --seed 2 --library 2
    """
    dataset.simulate_shown(out, "muons", lambda: simulate_dataset(out, **options))
