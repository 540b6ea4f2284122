"""Bundles of a trained generator of any kind: the stream from primaries to bundles, their files, and bundles in memory.

`icestream generate`, and the same in Python: `icestream.load(run).generate(primaries)`. The stream goes in chunks:
bounded memory for any number of events, and of muons in one. E events, P muons of a piece; the muons of an event are
contiguous, events in order.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from common.atomic_file import AS_UMASK_SAYS, part_of_one_writer, replacing
from common.config import SourceConfig
from common.errors import BadInputError
from common.files.layout import schema_of, to_table, writer_options
from common.files.remotes import Remotes
from common.files.rows import RaggedRows, offsets_of
from common.options import checked_seed, given_inputs
from common.slow_progress import SlowProgress
from common.unit_arrays import awkward_events
from workloads.base.batch import runs_of_events
from workloads.base.checkpoint import TrainedModel, TrainedRun, load_run
from workloads.base.device import device_named, tuned_cpu
from workloads.base.interface import Front
from workloads.base.random_streams import stream_seed
from workloads.muons.columns import MUONS
from workloads.muons.models.config import MAX_COUNT, LikelihoodConfig, WganConfig
from workloads.muons.models.likelihood_densities import MuonSampler
from workloads.muons.primaries import (
    Float32,
    Int64,
    Primaries,
    UInt64,
    at_depths,
    file_primaries,
    primaries_of_table,
    simulated_primaries,
    vertical,
)
from workloads.muons.purposes import MuonPurpose

if TYPE_CHECKING:
    import awkward


CONFIGS: Mapping[str, type[WganConfig | LikelihoodConfig]] = {"wgan": WganConfig, "likelihood": LikelihoodConfig}
"""Settings of each model."""


@dataclass(frozen=True)
class Trained:
    """Generator and its source."""

    generator: MuonSampler
    run: TrainedRun


def load_trained(checkpoint: Path, device: torch.device) -> Trained:
    """Trained model from a checkpoint, or from a run directory: its best checkpoint, else its newest.

    Raises BadInputError that names the file.
    """
    return load_run(checkpoint, partial(build_trained, device=device))


def build_trained(run: TrainedRun, task_state: dict[str, Any], device: torch.device) -> Trained:
    """Trained model of a run, from its task's state; for load_run."""
    run.require_workload(MUONS.name)
    if run.model not in CONFIGS:
        raise ValueError(
            f"{run.model!r} is no model of this version's muons ({', '.join(CONFIGS)}): use the version that wrote"
            " it, or train one of these"
        )
    network = CONFIGS[run.model].model_validate(run.section).network
    return Trained(MuonSampler.from_state(network, task_state, device), run)


CHUNK_EVENTS = 8192
"""Rows that share a seed. Part of the guarantee "same seed, same bytes": another number gives other events."""
MAX_MUONS = 1 << 18
"""Most muons in memory at once, except for a single event that has more. Part of the same guarantee."""

Counts = Literal["sampled", "column", "constant"]


@dataclass(frozen=True)
class CountRule:
    """Source of the numbers of muons."""

    kind: Counts
    constant: int = 0
    max_count: int = MAX_COUNT
    """Limit on the muons of an event; further ones are not generated, and the event is counted as capped."""


@dataclass(frozen=True, eq=False)
class MuonBundles:
    """Muon bundles: whole events, one for each primary, in the order of the primaries."""

    primaries: Primaries
    counts_E: Int64
    muons: Float32
    """Muons of all events: energy_gev, x_m, y_m. (P, 3)."""
    num_capped: int
    """Events with fewer muons than the model drew, because of max_count."""

    @classmethod
    def joined(cls, parts: Sequence[MuonBundles]) -> MuonBundles:
        """Bundles of all parts, in order."""
        no_primaries = Primaries(np.empty((0, 2), np.uint64), np.empty((0, 4), np.float32))
        none = cls(no_primaries, np.empty(0, np.int64), np.empty((0, 3), np.float32), 0)
        parts = parts or [none]
        return cls(
            Primaries.joined([part.primaries for part in parts]),
            np.concatenate([part.counts_E for part in parts]),
            np.concatenate([part.muons for part in parts]),
            sum(part.num_capped for part in parts),
        )

    @cached_property
    def offsets(self) -> Int64:
        """Event e has the muons offsets[e] to offsets[e + 1]. (E + 1,)."""
        return offsets_of(self.counts_E)

    @property
    def primary(self) -> Float32:
        """Primaries: energy_gev, zenith_rad, mass_a, depth_m; the depth as it was given. (E, 4)."""
        return self.primaries.primary_E4

    @property
    def primary_id(self) -> UInt64:
        """Ids of the table or files; without them file and row. (E, 2)."""
        return self.primaries.ids_E2

    def __len__(self) -> int:
        return len(self.counts_E)

    def __repr__(self) -> str:
        return f"<MuonBundles: {len(self):,} events, {len(self.muons):,} muons>"

    def rows(self, first: int, end: int) -> RaggedRows:
        """Rows ``first`` to ``end``, for a table."""
        return RaggedRows(
            counts=self.counts_E[first:end],
            event_columns={"primary": self.primary[first:end], "primary_id": self.primary_id[first:end]},
            particle_columns={"muons": self.muons[self.offsets[first] : self.offsets[end]]},
            large=np.empty(0, np.int64),
            large_events=None,
        )

    def table(self) -> pa.Table:
        """Table in the production schema, as `icestream generate` writes it."""
        rows = [self.rows(first, end) for first, end in runs_of_events(self.offsets, _TABLE_MUONS)]
        return pa.concat_tables([schema_of(MUONS).empty_table(), *(to_table([one], MUONS) for one in rows)])

    def awkward(self) -> awkward.Array:
        """Awkward Array with the records `primary`, `primary_id` and lists of records `muons`. Needs `awkward`."""
        return awkward_events(
            MUONS, self.offsets, {"primary": self.primary, "primary_id": self.primary_id}, {"muons": self.muons}
        )


_TABLE_MUONS = 1 << 26
"""Muons of a piece of a table: Arrow's lists hold less than 2^31 numbers."""


def generate_events(
    primaries: Iterable[Primaries], generator: MuonSampler, rule: CountRule, depth_kind: str, seed: int
) -> Iterator[MuonBundles]:
    """Events, one for each primary, in order.

    An event depends on model, device, seed, rule and the rows from the first to the last of its own chunk, and not on
    the division of the rows into batches or files. Rows of one shower share its random numbers.
    """
    for index, chunk in enumerate(chunks(primaries)):
        random = torch.Generator(generator.device).manual_seed(stream_seed(MuonPurpose.GENERATION, seed, index))
        primary_E4 = torch.from_numpy(vertical(chunk.primary_E4, depth_kind)).to(generator.device)
        shared_EZ, showers = None, chunk.showers()
        with tuned_cpu(generator.device):
            wanted_E = _counts(chunk, primary_E4, generator, rule, random)
            if showers is not None:
                shower_E = torch.from_numpy(showers).to(generator.device)
                if rule.kind == "sampled":
                    several_E = shower_E.bincount()[shower_E] > 1
                    args = generator.standardise.conditions(primary_E4[several_E]), shower_E[several_E], random
                    wanted_E[several_E] = generator.count_head.sample_showers(*args)
                size = len(chunk), generator.num_shared
                shared_EZ = torch.randn(size, device=generator.device, generator=random)[shower_E]
        counts_E = wanted_E.clamp(max=rule.max_count)
        is_capped = (wanted_E > rule.max_count).cpu().numpy()
        counts = counts_E.cpu().numpy()
        for first, end in runs_of_events(offsets_of(counts), MAX_MUONS):
            some = slice(first, end)
            shared = None if shared_EZ is None else shared_EZ[some]
            with tuned_cpu(generator.device):
                muons_P3 = generator.draw_muons(primary_E4[some], counts_E[some], random, shared).cpu().numpy()
            yield MuonBundles(chunk.rows(first, end), counts[some], muons_P3, int(np.count_nonzero(is_capped[some])))


def chunks(primaries: Iterable[Primaries]) -> Iterator[Primaries]:
    """Chunks of CHUNK_EVENTS of the same rows, or fewer: a shower whose rows stand together is not cut."""
    pending: list[Primaries] = []
    num_pending = 0
    for batch in primaries:
        pending.append(batch)
        num_pending += len(batch)
        if num_pending <= CHUNK_EVENTS:
            continue
        rows = Primaries.joined(pending)
        while len(rows) > CHUNK_EVENTS:
            columns = [*rows.ids_E2[: CHUNK_EVENTS + 1].T, *rows.primary_E4[: CHUNK_EVENTS + 1, :3].T]
            others = np.flatnonzero(np.any([column != column[-1] for column in columns], axis=0))
            end = int(others[-1]) + 1 if len(others) else CHUNK_EVENTS
            yield rows.rows(0, end)
            rows = rows.rows(end, len(rows))
        pending, num_pending = [rows], len(rows)
    if num_pending:
        yield Primaries.joined(pending)


def _counts(
    chunk: Primaries, primary_E4: torch.Tensor, generator: MuonSampler, rule: CountRule, random: torch.Generator
) -> torch.Tensor:
    if rule.kind == "sampled":
        return generator.draw_counts(primary_E4, random)
    if rule.kind == "constant":
        return torch.full((len(chunk),), rule.constant, device=generator.device, dtype=torch.int64)
    assert chunk.counts_E is not None, "the reader was asked for counts"
    return torch.from_numpy(chunk.counts_E).to(generator.device)


ROW_GROUP_EVENTS = 32_768
ROW_GROUP_MUONS = 1 << 20
"""Limits of a row group, which is held in memory until written; it is closed at the first one reached."""
METADATA_KEY = "icestream.generated"
"""Key in the Parquet footer for the provenance of the events, as JSON."""
_OWN_FILE = re.compile(r"bundles_\d{7,}\.parquet")


def write_bundles(
    bundles: Iterable[MuonBundles],
    out: Path,
    *,
    rows_per_file: int = 1_000_000,
    replaced: Set[Path] = frozenset(),
    provenance: Mapping[str, Any],
) -> list[Path]:
    """Write a file (``out``: *.parquet), or a directory with files of ``rows_per_file`` events, and return the paths.

    A file gets its name when it is complete, and only without an error. ``replaced``: files that go at the end, unless
    they were written again.
    """
    is_file = _is_file(out)
    (out.parent if is_file else out).mkdir(parents=True, exist_ok=True)
    schema = schema_of(MUONS)
    options = writer_options(schema, "zstd")
    schema = schema.with_metadata({METADATA_KEY: json.dumps(dict(provenance))})
    paths: list[Path] = []

    def write(rows: Iterable[RaggedRows]) -> None:
        path = out if is_file else out / f"bundles_{len(paths):07d}.parquet"
        new = replacing(path, durable=False, mode=AS_UMASK_SAYS, part=part_of_one_writer(path))
        with new as part, pq.ParquetWriter(part, schema, **options) as writer:
            for group in _row_groups(rows):
                table = to_table(group, MUONS).cast(schema)
                writer.write_table(table, row_group_size=max(table.num_rows, 1))
        paths.append(path)

    rows_of_files = _rows_of_files(bundles, sys.maxsize if is_file else rows_per_file)
    for _, rows in groupby(rows_of_files, key=itemgetter(0)):
        write(one for _, one in rows)
    if not paths:
        write([])  # without any event, an empty file
    for needless in replaced - set(paths):
        needless.unlink(missing_ok=True)
    return paths


def _rows_of_files(bundles: Iterable[MuonBundles], rows_per_file: int) -> Iterator[tuple[int, RaggedRows]]:
    """Rows in order, each with the number of its file."""
    before = 0
    for piece in bundles:
        first = 0
        while first < len(piece):
            file, row = divmod(before + first, rows_per_file)
            end = min(first + rows_per_file - row, len(piece))
            yield file, piece.rows(first, end)
            first = end
        before += len(piece)


def _row_groups(rows: Iterable[RaggedRows]) -> Iterator[list[RaggedRows]]:
    """Row groups within the limits, but for a single event that has more muons."""
    group: list[RaggedRows] = []
    num_events = num_muons = 0
    for piece in rows:
        muons = len(piece.particle_columns["muons"])
        if group and num_muons + muons > ROW_GROUP_MUONS:
            yield group
            group, num_events, num_muons = [], 0, 0
        group.append(piece)
        num_events, num_muons = num_events + len(piece.counts), num_muons + muons
        if num_events >= ROW_GROUP_EVENTS:
            yield group
            group, num_events, num_muons = [], 0, 0
    if group:
        yield group


def _is_file(out: Path) -> bool:
    return out.suffix == ".parquet" and not out.is_dir()


def replaceable(out: Path, *, force: bool) -> set[Path]:
    """Existing files that will be replaced. Raises BadInputError if ``out`` can't be used."""
    if _is_file(out):
        if out.exists() and not force:
            raise BadInputError(f"{out} exists: choose another name, or overwrite it with --force")
        return set()
    if out.exists() and not out.is_dir():
        raise BadInputError(f"{out} is a file without the suffix .parquet; name a directory, or a *.parquet file")
    there = sorted(out.iterdir()) if out.is_dir() else []
    if there and not force:
        raise BadInputError(f"{out} is not empty: choose another directory, or overwrite its bundles with --force")
    foreign = [path.name for path in there if not _OWN_FILE.fullmatch(path.name)]
    if foreign:
        raise BadInputError(f"{out} holds more than bundles, such as {foreign[0]}: choose another directory")
    return set(there)


_LARGEST_CONSTANT = 10**9


def run_generate(
    front: Front,
    *,
    checkpoint: Path,
    inputs: tuple[str, ...],
    out: Path,
    preset_name: str | None,
    events: int | None,
    counts: str,
    counts_column: str,
    max_count: int | None,
    depth_kind: str | None,
    depths: tuple[float, ...],
    seed: int,
    device: str,
    threads: int | None,
    rows_per_file: int,
    force: bool,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> str:
    """Write bundles, and return one line about them. The options are those of the command. Raises BadInputError."""
    _check_options(inputs, preset_name, events, counts, counts_column)
    rule = count_rule(counts, max_count)
    depths_m = checked_depths(depths, rule)
    if threads is not None:
        torch.set_num_threads(threads)
    trained = load_trained(checkpoint, device_named(device))
    run = trained.run
    settings = front.file_settings(inputs, toml=toml, assignments=assignments)
    source = merged_source(settings.source, run.source, depth_kind)
    provenance = {"model": run.model, "step": run.step, "events_trained": run.events_trained}
    provenance |= {"counts": counts, "max_count": rule.max_count, "depth_kind": source.depth_kind, "seed": seed}
    provenance |= {"depths_m": depths_m} if depths_m else {}
    replaced = replaceable(out, force=force)
    totals = np.zeros(3, np.int64)
    started_s = time.perf_counter()
    with ExitStack() as stack:
        progress = stack.enter_context(SlowProgress("events generated", events or 0))
        if preset_name is not None:
            assert events is not None
            primaries, total = simulated_primaries(preset_name, events, source.depth_kind, seed), events
        else:
            remotes = stack.enter_context(Remotes(settings.access))
            settings = replace(settings, source=source)
            primaries, total = file_primaries(settings, remotes, counts_column if rule.kind == "column" else None, out)
        if depths_m:
            primaries, total = at_depths(primaries, depths_m), total * len(depths_m)

        def counted() -> Iterator[MuonBundles]:
            for bundles in generate_events(primaries, trained.generator, rule, source.depth_kind, seed):
                yield bundles
                totals[:] += len(bundles), len(bundles.muons), bundles.num_capped
                progress.reach(int(totals[0]), total)

        paths = write_bundles(counted(), out, rows_per_file=rows_per_file, replaced=replaced, provenance=provenance)
    num_events, num_muons, num_capped = totals.tolist()
    rate = num_events / max(time.perf_counter() - started_s, 1e-9)
    capped = f"{num_capped:,} capped at {rule.max_count:,} muons" if num_capped else "none capped"
    return (
        f"{out}: {num_events:,} events, {num_muons:,} muons, {capped}, "
        f"{len(paths)} file{'s' * (len(paths) != 1)}, {rate:,.0f} events/s "
        f"(step {run.step:,} of {run.path})"
    )


def count_rule(text: str, max_count: int | None) -> CountRule:
    """Rule of the option `--counts`: ``sampled``, ``column`` or ``constant:7``. Raises BadInputError."""
    most = MAX_COUNT if max_count is None else max_count
    if text in ("sampled", "column"):
        return CountRule(text, max_count=most)  # type: ignore[arg-type]
    kind, _, number = text.partition(":")
    if kind == "constant" and number.isdecimal() and int(number) <= _LARGEST_CONSTANT:
        return CountRule("constant", int(number), most)
    raise BadInputError(
        f"--counts {text}: expected sampled, column, or constant:N with a whole number N of at most"
        f" {_LARGEST_CONSTANT:,}"
    )


def checked_depths(depths_m: Any, rule: CountRule) -> list[float]:
    """Depths at which each shower is recorded. Raises BadInputError."""
    try:
        depths_D = np.array(depths_m, np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise BadInputError(f"depths {depths_m!r}: expected numbers") from None
    found: list[float] = depths_D.tolist()
    if not ((depths_D >= 0) & (depths_D < 1e6)).all() or len(np.unique(depths_D.astype(np.float32))) < len(found):
        raise BadInputError(f"depths {found}: expected metres, from 0 on and below 1e6, each once")
    if found and rule.kind == "column":
        raise BadInputError("--counts column has one number for each primary: not with --depth")
    return found


def merged_source(source: SourceConfig, trained: SourceConfig, depth_kind: str | None) -> SourceConfig:
    """Settings of these files; unset ones are taken from the training's files."""
    given = {name: getattr(source, name) for name in source.model_fields_set}
    if depth_kind is not None:
        given["depth_kind"] = depth_kind
    return trained.model_copy(update=given)


def _check_options(
    inputs: Sequence[str], preset_name: str | None, events: int | None, counts: str, counts_column: str
) -> None:
    if preset_name is None and not inputs:
        raise BadInputError("no primaries: name files with them, or use --primaries-from PRESET --events N")
    if preset_name is not None and inputs:
        raise BadInputError(f"--primaries-from {preset_name} and {inputs[0]}: use one of both")
    if (preset_name is None) != (events is None):
        raise BadInputError("--primaries-from and --events belong together")
    if preset_name is not None and counts == "column":
        raise BadInputError("--counts column reads numbers of muons from files: not with --primaries-from")
    if counts_column and counts != "column":
        raise BadInputError(f"--counts-column {counts_column} needs --counts column, and not {counts}")


_FIELDS = MUONS.column("primary").fields


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
        depths_m: Sequence[float] = (),
    ) -> MuonBundles:
        """Muon bundles, one for each primary, in order: those that `icestream generate` writes, in memory.

        ``primaries``: an array or tensor (E, 4) of energy_gev, zenith_rad, mass_a, depth_m; a mapping of columns with
        these names; a pyarrow table or record batch; or files, as a path, glob, URL, or a list of these.
        ``counts``: numbers of muons: ``sampled`` from the model, ``column``: those of the table or files (num_muons,
        or the lists muons), or one number for all events. ``max_count``: most muons of an event; by default
        100,000. ``depth_kind``: ``vertical`` or ``slant``; by default that of the run's inputs. ``depths_m``: depths
        at which each primary's shower is recorded, in place of its own: one bundle each.
        Same seed, same model and device: same bundles. Raises BadInputError.
        """
        if isinstance(primaries, Iterator):
            primaries = [*primaries]
        rule = count_rule(counts if isinstance(counts, str) else f"constant:{counts}", max_count)
        if depth_kind not in (None, "vertical", "slant"):
            raise BadInputError(f"depth_kind = {depth_kind!r}: use 'vertical' or 'slant'")
        checked_seed(seed)
        if rule.max_count < 0:
            raise BadInputError(f"max_count = {max_count}: must not be negative")
        depths = checked_depths(depths_m, rule)
        counts_column = "" if rule.kind == "column" else None
        inputs = _inputs(primaries)
        settings = self._front.file_settings(inputs or (), toml=None, assignments=())
        source = merged_source(settings.source, self.run.source, depth_kind)
        with Remotes(settings.access) as remotes:
            if inputs is not None:
                rows, _ = file_primaries(replace(settings, source=source), remotes, counts_column)
            else:
                # Only a table may be laid out as the run's files: arrays have the columns of the documentation.
                is_table = isinstance(primaries, pa.Table | pa.RecordBatch)
                schema = MUONS.stored_as(source) if is_table else MUONS
                rows = primaries_of_table(_table(primaries), "primaries", schema, counts_column)
            rows = at_depths(rows, depths) if depths else rows
            pieces = generate_events(rows, self._trained.generator, rule, source.depth_kind, seed)
            return MuonBundles.joined(list(pieces))


def load(front: Front, run: TrainedRun, task_state: dict[str, Any], device: torch.device) -> TrainedMuons:
    """Trained model of a run; see Workload.functions."""
    return TrainedMuons(front, build_trained(run, task_state, device))


def _inputs(primaries: Any) -> tuple[str, ...] | None:
    """Absolute inputs if ``primaries`` names files, else None."""
    several = [primaries] if isinstance(primaries, str | os.PathLike) else primaries
    if isinstance(several, Sequence) and several and all(isinstance(one, str | os.PathLike) for one in several):
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
