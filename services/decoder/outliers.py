"""Outliers, or invalid events, of one unit as a Parquet file: unchanged from their files, with the origin of each."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.atomic_file import Publishing, replacing
from common.messages import Unit
from common.schema import EventSchema
from common.status import OUTLIER_FOLDER


@dataclass(frozen=True)
class Outliers:
    """N whole events that are set aside: with too many particles, or invalid."""

    files: Sequence[str]
    """(N,) names of their files."""
    rows: npt.NDArray[np.int64]
    """(N,) rows in the files."""
    events: pa.Table
    """Source columns of the workload, as in the files."""
    counts: npt.NDArray[np.int64] | None = None
    """(N,) numbers of particles; None: not counted, since the events are invalid."""
    reasons: Sequence[str] = ()
    """(N,) rules that invalid events break."""


def outlier_path(run_dir: Path, unit: Unit, plan: str, folder: str = OUTLIER_FOLDER) -> Path:
    """Path named by unit, plan hash and inventory digest: decoding again replaces the file, another plan keeps it."""
    return run_dir / folder / f"unit-{unit.k:010d}-{plan[:8]}{unit.source.digest[:8]}.parquet"


def write_outliers(
    path: Path, outliers: Sequence[Outliers], workload: EventSchema, publishing: Publishing = nullcontext
) -> None:
    """Write the file atomically, and another one for each further set of types that the files of a unit have. Each can
    be used as an input. ``publishing``: see replacing()."""
    names = list(dict.fromkeys(source.path[0] for source in workload.source_columns))
    alike: dict[tuple[pa.DataType, ...], list[Outliers]] = {}
    for one in outliers:
        alike.setdefault(tuple(one.events[name].type for name in names), []).append(one)
    for number, group in enumerate(alike.values()):
        _write(path.with_stem(f"{path.stem}{number:02x}") if number else path, group, names, publishing)


def _write(path: Path, outliers: Sequence[Outliers], names: Sequence[str], publishing: Publishing) -> None:
    events = pa.concat_tables([pa.table({name: one.events[name] for name in names}) for one in outliers])
    columns = {name: events[name] for name in names}
    columns["source_file"] = pa.array([file for one in outliers for file in one.files])
    columns["source_row"] = pa.array(np.concatenate([one.rows for one in outliers]), pa.int64())
    counts = [one.counts for one in outliers if one.counts is not None]
    if counts:
        columns["num_particles"] = pa.array(np.concatenate(counts), pa.int64())
    else:
        columns["reason"] = pa.array([reason for one in outliers for reason in one.reasons])
    if not path.parent.is_dir():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_suffix(f".{secrets.token_hex(4)}.part")  # two decoders may write it, if one was taken for hung
    with (
        replacing(path, durable=False, part=part, publishing=publishing) as new,
        pa.OSFile(str(new), "wb") as sink,
    ):
        pq.write_table(
            pa.table(columns).combine_chunks(), sink, write_page_checksum=True, use_dictionary=["source_file"]
        )
