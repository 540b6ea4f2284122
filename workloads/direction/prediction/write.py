"""Files of predictions: Parquet, or Kaggle's submission. They appear when they are complete, or not at all.

E events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from common.atomic_file import AS_UMASK_SAYS, part_of_one_writer, replacing
from common.errors import BadInputError
from common.output_place import require_place
from workloads.direction.metrics.angles import azimuth_zenith_rad
from workloads.direction.metrics.predicted import unit_and_norm

PARQUET, CSV = ".parquet", ".csv"
METADATA_KEY = "icestream.predicted"
"""Key in the Parquet footer for the model of the predictions, as JSON."""
_ANGLES = [("event_id", pa.int64()), ("azimuth", pa.float64()), ("zenith", pa.float64())]
TABLE_SCHEMA = pa.schema([*_ANGLES, ("kappa", pa.float64())])
_SCHEMAS = {PARQUET: TABLE_SCHEMA, CSV: pa.schema(_ANGLES)}
_HEADER = b"event_id,azimuth,zenith\n"


class WriteTable(Protocol):
    """Function that appends rows to a file."""

    def __call__(self, table: pa.Table) -> None: ...


def prediction_table(event_id_E: npt.NDArray[np.int64], p_E3: npt.NDArray[np.float64]) -> pa.Table:
    """Rows of predictions: angles in radians, azimuth in [0, 2π), zenith in [0, π].

    Without a direction (p = 0, or not finite) all three are 0: κ says so in Parquet; a submission needs numbers.
    """
    unit_E3, kappa_E = unit_and_norm(p_E3)
    unit_E3[kappa_E == 0] = (0.0, 0.0, 1.0)
    azimuth_E, zenith_E = azimuth_zenith_rad(unit_E3)
    return pa.table([event_id_E, azimuth_E, zenith_E, kappa_E], schema=_SCHEMAS[PARQUET])


def check_output(out: Path, *, force: bool) -> None:
    """Check that ``out`` can be written, before minutes of work. Raises BadInputError."""
    if out.suffix not in _SCHEMAS:
        raise BadInputError(f"{out}: name a file *{PARQUET}, or *{CSV} for Kaggle's submission")
    if out.is_dir():
        raise BadInputError(f"{out} is a folder; name a file with -o")
    if out.exists() and not force:
        raise BadInputError(f"{out} exists: choose another name, or overwrite it with --force")
    if not out.parent.is_dir():
        raise BadInputError(f"{out.parent}: no such folder; make it, or choose another -o")
    require_place(out)


@contextmanager
def prediction_file(out: Path, model: Mapping[str, object]) -> Iterator[WriteTable]:
    """File of predictions, by its suffix; ``model`` is kept in the footer of a Parquet file."""
    with replacing(out, durable=False, mode=AS_UMASK_SAYS, part=part_of_one_writer(out)) as part:
        schema = _SCHEMAS[out.suffix]
        if out.suffix == PARQUET:
            schema = schema.with_metadata({METADATA_KEY: json.dumps(dict(model))})
            with pq.ParquetWriter(part, schema, compression="zstd") as parquet:
                yield lambda table: parquet.write_table(table.cast(schema))
            return
        with part.open("wb") as file:
            file.write(_HEADER)  # Arrow would put the names in quotes
            options = pyarrow.csv.WriteOptions(include_header=False)
            with pyarrow.csv.CSVWriter(file, schema, write_options=options) as submission:
                yield lambda table: submission.write_table(table.select(schema.names))
