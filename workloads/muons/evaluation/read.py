"""Real events for an evaluation, from files of any format that a run reads. E events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import BadInputError
from common.files.file_kind import file_kind
from common.unit_arrays import Array, UnitArrays
from workloads.base.evaluation.files import MOST_PARTICLES, evaluation_stream, reading_warnings
from workloads.base.front import FileEvents, FileSettings, Front
from workloads.muons.metrics.bundles import BundleArrays, Float64
from workloads.muons.metrics.sample import Sample
from workloads.muons.workload import WORKLOAD


@dataclass(frozen=True)
class RealEvents:
    """Sample of events from files, with remarks for a reader of the report."""

    sample: Sample
    num_files: int
    """Files that were read."""
    num_sources: int
    """Files that were named."""
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    """Reasons not to believe numbers found with them."""


def read_real(
    front: Front,
    settings: FileSettings,
    *,
    events: int,
    seed: int,
    trained_inputs: Sequence[str],
    held_out: float = 0.0,
    weights: str = "",
) -> RealEvents:
    """Sample of up to ``events`` events (0: all) from all of the files, the same for the same seed.

    ``weights``: a Parquet column of the files; ``held_out``: see Front.read_events. Raises BadInputError that names the
    file.
    """
    settings = replace(settings, stream=evaluation_stream(settings.stream))
    schema = WORKLOAD.schema.stored_as(settings.source)
    events_of_files = front.read_events(
        schema, settings, events=events, seed=seed, trained_inputs=trained_inputs, held_out=held_out
    )
    with events_of_files as found:
        weight_E = None
        if weights:
            columns = found.arrays.event_columns
            weight_E = read_weights(found.paths, columns["source_file"][:, 0], columns["source_row"][:, 0], weights)
        sample = sample_of(found.arrays, weight_E)
        return RealEvents(sample, found.num_files, found.num_sources, tuple(_notes(found)), reading_warnings(found))


def sample_of(arrays: UnitArrays, weight_E: Float64 | None) -> Sample:
    """Sample of the events in a unit's arrays. Events with the same ids belong to one shower."""
    ids_E2 = arrays.event_columns["primary_id"]
    shower_E = np.unique(ids_E2, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    bundles = BundleArrays.of(np.diff(arrays.offsets), arrays.particle_columns["muons"].astype(np.float64))
    return Sample(arrays.event_columns["primary"].astype(np.float64), shower_E, bundles, weight_E)


def read_weights(paths: Mapping[int, Path], file_E: Array, row_E: Array, column: str) -> Float64:
    """Weights of the events, from ``column`` of their rows in the files. Raises BadInputError."""
    weight_E = np.empty(len(file_E))
    for index in np.unique(file_E).tolist():
        of_file_E = file_E == index
        weight_E[of_file_E] = _weights_of(paths[index], column)[row_E[of_file_E]]
    if not weight_E.sum() > 0:
        raise BadInputError(f"weights in {column!r}: all of them are 0")
    return weight_E


def _weights_of(path: Path, column: str) -> Float64:
    if file_kind(path) != "Parquet":
        raise BadInputError(f"{path}: weights are read from Parquet files only; convert it with `icestream convert`")
    schema = pq.read_schema(path)
    if column not in schema.names:
        raise BadInputError(f"{path}: no column {column!r} for the weights; it has {', '.join(schema.names)}")
    kind = schema.field(column).type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise BadInputError(f"{path}: the column {column!r} has type {kind}; weights are numbers")
    stored = pq.read_table(path, columns=[column])[column]
    weights: Float64 = stored.cast(pa.float64()).to_numpy()  # a null becomes a NaN
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise BadInputError(f"{path}: the column {column!r} holds a weight that is negative, null or not finite")
    return weights


def _notes(found: FileEvents) -> Iterator[str]:
    tallies = found.tallies
    if found.which == "held out":
        yield "the model was trained on these files: only events that its run held out of training are used"
    dropped = sum(tally.particles_dropped for tally in tallies)
    outliers = sum(tally.outliers for tally in tallies)
    empty = sum(tally.empty for tally in tallies)
    if dropped:
        yield f"{dropped:,} fillers (muons with E ≤ 0) were dropped from the real events"
    if outliers:
        yield f"{outliers:,} events with more than {MOST_PARTICLES:,} muons were left out"
    if empty:
        yield f"{empty:,} rows hold no event and were left out"
