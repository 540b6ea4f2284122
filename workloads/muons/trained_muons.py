"""Trained muon model in Python: `icestream.load(run).generate(primaries)`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from common.config import SourceConfig
from common.errors import BadInputError
from common.files.remotes import Remotes
from common.python_paths import given_inputs
from common.seed import checked_seed
from workloads.base.front import Front
from workloads.base.trained_model import TrainedModel
from workloads.base.trained_run import TrainedRun
from workloads.muons.generation.bundles import MuonBundles
from workloads.muons.generation.files import FilePrimaries
from workloads.muons.generation.load import Trained, build_trained
from workloads.muons.generation.primaries import Primaries, WantedCounts, primaries_of_table
from workloads.muons.generation.run import merged_source, parse_counts
from workloads.muons.generation.stream import CountRule
from workloads.muons.generation.stream import generate as generate_events
from workloads.muons.workload import WORKLOAD

_FIELDS = WORKLOAD.schema.column("primary").fields


class TrainedMuons(TrainedModel):
    """Trained generator of muon bundles."""

    uses = ("generate",)

    def __init__(self, front: Front, trained: Trained) -> None:
        super().__init__(front, trained.run)
        self._trained = trained

    def generate(
        self,
        primaries: Any,
        *,
        seed: int = 0,
        counts: str | int = "sampled",
        max_count: int | None = None,
        depth_kind: str | None = None,
    ) -> MuonBundles:
        """Muon bundles, one for each primary, in order: those that `icestream generate` writes, in memory.

        ``primaries``: an array or tensor (E, 4) of energy_gev, zenith_rad, mass_a, depth_m; a mapping of columns with
        these names; a pyarrow table or record batch; or files, as a path, glob, URL, or a list of these.
        ``counts``: numbers of muons: ``sampled`` from the model, ``column``: those of the table or files (num_muons,
        or the lists muons), or one number for all events. ``max_count``: most muons of an event; by default that of
        the run. ``depth_kind``: ``vertical`` or ``slant``; by default that of the run's inputs.
        Same seed, same model and device: same bundles. Raises BadInputError.
        """
        if isinstance(primaries, Iterator):
            primaries = [*primaries]
        kind, constant = parse_counts(counts if isinstance(counts, str) else f"constant:{counts}")
        if depth_kind not in (None, "vertical", "slant"):
            raise BadInputError(f"depth_kind = {depth_kind!r}: use 'vertical' or 'slant'")
        checked_seed(seed)
        if (max_count or 0) < 0:
            raise BadInputError(f"max_count = {max_count}: must not be negative")
        most = self._trained.max_count if max_count is None else max_count
        wanted = WantedCounts() if kind == "column" else None
        with ExitStack() as stack:
            rows, source = self._rows(primaries, wanted, depth_kind, stack)
            rule = CountRule(kind, constant, most)
            return MuonBundles.joined(
                list(generate_events(rows, self._trained.generator, rule, source.depth_kind, seed))
            )

    def _rows(
        self, primaries: Any, wanted: WantedCounts | None, depth_kind: str | None, stack: ExitStack
    ) -> tuple[Iterator[Primaries], SourceConfig]:
        """Rows of the primaries, and the settings by which they are read."""
        inputs = _inputs(primaries)
        settings = self._front.file_settings(inputs or (), toml=None, assignments=())
        source = merged_source(settings.source, self.run.source, depth_kind)
        if inputs is not None:
            remotes = stack.enter_context(Remotes(settings.access))
            return FilePrimaries(replace(settings, source=source), remotes, wanted).primaries(), source
        is_table = isinstance(primaries, pa.Table | pa.RecordBatch)
        # Only a table may be laid out as the run's files: arrays have the columns of the documentation.
        schema = WORKLOAD.schema.stored_as(source) if is_table else WORKLOAD.schema
        return primaries_of_table(_table(primaries), "primaries", schema, wanted), source


def load(front: Front, run: TrainedRun, task_state: dict[str, Any], device: torch.device) -> TrainedMuons:
    """Trained model of a run; see Workload.functions."""
    return TrainedMuons(front, build_trained(run, task_state, device))


def _inputs(primaries: Any) -> tuple[str, ...] | None:
    """Absolute inputs if ``primaries`` names files, else None."""
    if isinstance(primaries, str | os.PathLike):
        return given_inputs(primaries, "primaries")
    if isinstance(primaries, Sequence) and primaries and all(isinstance(one, str | os.PathLike) for one in primaries):
        return given_inputs(primaries, "primaries")
    return None


def _table(primaries: Any) -> pa.Table:
    """Primaries in memory as a table. Raises BadInputError."""
    if isinstance(primaries, pa.Table):
        return primaries
    if isinstance(primaries, pa.RecordBatch):
        return pa.Table.from_batches([primaries])
    if not isinstance(primaries, Mapping):
        primaries = {"primary": primaries}
    columns = {str(name): _array(str(name), values) for name, values in primaries.items()}
    lengths = {name: len(array) for name, array in columns.items()}
    if len(set(lengths.values())) > 1:
        raise BadInputError(f"primaries: columns of different lengths: {lengths}")
    return pa.table(columns)


def _array(name: str, values: Any) -> pa.Array:
    """Column of a table; ``primary`` is a matrix. Raises BadInputError."""
    try:
        numbers = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    except (TypeError, ValueError) as error:
        raise BadInputError(f"primaries: {name} is no array of numbers ({error})") from None
    if numbers.dtype.kind not in "fiu":
        raise BadInputError(f"primaries: {name} is {numbers.dtype}; expected numbers, files, or columns of numbers")
    width = len(_FIELDS)
    expected = (len(numbers), width) if numbers.ndim and name == "primary" else (numbers.size,)
    if numbers.shape != expected:
        shape = f"(E, {width}): {', '.join(_FIELDS)}" if name == "primary" else "(E,)"
        raise BadInputError(f"primaries: {name} has the shape {numbers.shape}; expected {shape}")
    if name == "primary":
        flat = pa.array(np.ascontiguousarray(numbers, np.float64).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, width)
    return pa.array(np.ascontiguousarray(numbers))
