"""Plan: the rows of unit 0, 1, 2, … as a pure function of (inventory, footers, seed, epoch, configuration)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache, partial
from math import ceil
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from common.config import MIB, StreamConfig
from common.errors import BadInputError
from common.messages import MAX_PARTS, MAX_TEXT_BYTES, Layout, Part, Quarantined, Source, Unit, shortened
from common.schema import SCHEMA_VERSION, EventSchema
from common.text import without_tokens
from common.unit_arrays import slot_bytes_needed

MOST_BATCH_ROWS = 32_768
"""Default maximum of rows in a reader's record batch."""
_LEAST_SHARE = 8
_LEAST_OUTLIER_BYTES = 32 * MIB
"""Minimum for slots below 4 MiB: an event of 178,000 particles takes 2 MiB, whatever the slot."""
_BASE_BYTES = 512 * MIB
_COPIES = 8
"""Maximum bytes in memory for one byte of numbers: levels, offsets, values that grow by doubling, the outliers as
stored in the file, and their Parquet file."""


def outlier_share(stream: StreamConfig) -> int:
    """Divisor of an outlier's particles in the plan."""
    return max(_LEAST_SHARE, ceil(_LEAST_OUTLIER_BYTES / stream.slot_bytes))


def working_bytes(stream: StreamConfig) -> int:
    """Maximum bytes of memory to inspect a file or decode a unit: several times the need of good files."""
    return _BASE_BYTES + _COPIES * outlier_share(stream) * stream.slot_bytes


class Stream(IntEnum):
    """Purpose of random numbers; equal keys of different streams are independent."""

    FILES = 1
    """Order of the files in an epoch: key (seed, epoch), from the second range on (seed, epoch, range)."""
    ROW_GROUPS = 2
    """Order of the row groups in a block: key (seed, block of the run)."""
    EVENTS = 3
    """Order of the events in a unit: key (seed, epoch, k), with several shards (seed, epoch, k, shard)."""
    BUCKETS = 4
    """Order of the batches in a unit with `stream.length_buckets`: keys as of EVENTS."""
    TRANSFORM = 5
    """Numbers for `stream.transform`: keys as of EVENTS."""


def generator(stream: Stream, seed: int, *key: int) -> np.random.Generator:
    """Random generator that depends only on its arguments (non-negative; the key's below 2**32)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(int(stream), *key))))


Which = Literal["train", "held_out", "all"]
"""Choice of events by `stream.held_out`: those for training, those held out of it, or both."""

_STEP, _FIRST, _SECOND = (np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def is_held_out(ids: npt.NDArray[Any], share: float) -> npt.NDArray[np.bool_]:
    """True for the events that are held out if ``share`` (0 ≤ share < 1) of all are.

    ``ids`` are integers of any type, (E, F). -> (E,). Held out are hashes below share · 2⁶⁴. The hash starts at 0; with
    each number of an id, as 64 bits in two's complement, h becomes splitmix64(h xor number) (Steele, Lea, Flood, "Fast
    splittable pseudorandom number generators", OOPSLA 2014).
    """
    hashes = np.zeros(len(ids), np.uint64)
    for field in range(ids.shape[1]):
        # The generator's next output; unsigned integers wrap around.
        hashes = (hashes ^ ids[:, field].astype(np.int64, copy=False).view(np.uint64)) + _STEP
        hashes = (hashes ^ (hashes >> np.uint64(30))) * _FIRST
        hashes = (hashes ^ (hashes >> np.uint64(27))) * _SECOND
        hashes ^= hashes >> np.uint64(31)
    return hashes < np.uint64(int(share * 2**64))


@dataclass(frozen=True, slots=True)  # slots: there may be millions
class SourceFile:
    """File of the inventory."""

    url: str
    size_bytes: int
    checksum: str = ""
    """Checksum if known: `adler32=…`, `md5=…` and the like."""


@dataclass(frozen=True)
class Span:
    """Consecutive rows of a row group, with an upper bound of their particles."""

    first_row: int
    rows: int
    particles: int
    batch_rows: int = 0
    """Maximum rows in one record batch of the row group; 0: the reader's default."""


@dataclass(frozen=True)
class RowGroup:
    """Counts of a row group, from its footer; ``spans`` divide it if it is too large for one unit."""

    rows: int
    particles: int
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Footer:
    """Row groups of one staged file."""

    row_groups: tuple[RowGroup, ...]

    @property
    def rows(self) -> int:
        """Number of events in the file."""
        return sum(row_group.rows for row_group in self.row_groups)


def groups_of(footer: Footer) -> list[Sequence[Any]]:
    """Return the numbers of each row group: rows, particles, and those of each span."""
    return [
        (g.rows, g.particles, *[(s.first_row, s.rows, s.particles, s.batch_rows) for s in g.spans])
        if g.spans
        else (g.rows, g.particles)  # nearly always, and three times as fast
        for g in footer.row_groups
    ]


def footer_of(groups: Iterable[Sequence[Any]]) -> Footer:
    """Return the footer of these numbers. Raises ValueError or TypeError if they are none."""
    return Footer(tuple(RowGroup(rows, n, tuple(Span(*span) for span in spans)) for rows, n, *spans in groups))


@dataclass(frozen=True)
class StagedFile:
    """File of a block, ready for planning: its footer, or the reason for its absence."""

    file: int
    path: str
    """Local path; empty: its footer is known from before, but the file is gone now."""
    footer: Footer | None
    remote: str = ""
    """URL of a remote file."""
    reason: str = ""
    bad_rows: int = 0
    """Number of events in a file without footer, as far as known."""


class Blocks:
    """Files of block 0, 1, 2, … Blocks are numbered over all epochs; ``epochs = 0`` has no end.

    A block has files of one range only. Ranges may become known one by one, with append(); until all are known, so are
    only their blocks in the first epoch. For the stream of a shard, arguments named ``block`` and `end` count its own
    blocks, and all other numbers those of the run.
    """

    def __init__(self, num_files: int, stream: StreamConfig, seed: int, epochs: int) -> None:
        self.epochs = epochs
        self.num_ranges = 1
        self._stream = stream
        self._seed = seed
        self._first_file = [0]  # of each range, and behind the last one
        self._first_block = [0]  # likewise, in an epoch
        # A few at a time (there may be millions of files): staging may be ahead, in the next range or epoch.
        self._order = lru_cache(maxsize=4)(self._permuted)
        self.append(num_files)

    @classmethod
    def of_ranges(cls, num_ranges: int, stream: StreamConfig, seed: int, epochs: int) -> Blocks:
        """Blocks of ``num_ranges`` ranges, none of which is known yet."""
        blocks = cls(0, stream, seed, epochs)
        blocks.num_ranges = num_ranges
        blocks._first_file, blocks._first_block = [0], [0]
        return blocks

    def append(self, num_files: int) -> None:
        """Add the next range, of ``num_files`` files."""
        self._first_file.append(self._first_file[-1] + num_files)
        self._first_block.append(self._first_block[-1] + math.ceil(num_files / self._stream.block_files))

    @property
    def num_known(self) -> int:
        """Number of ranges appended so far."""
        return len(self._first_file) - 1

    @property
    def num_files(self) -> int:
        """Number of files in the known ranges."""
        return self._first_file[-1]

    @property
    def per_epoch(self) -> int:
        """Number of blocks in the known ranges."""
        return self._first_block[-1]

    @property
    def complete(self) -> bool:
        """True once all ranges are known."""
        return self.num_known >= self.num_ranges

    @property
    def end(self) -> int | None:
        """Number of blocks; None without end, or while unknown."""
        if not self.epochs or not self.complete:
            return None
        end = self.epochs * self.per_epoch
        return end if self._stream.shard is None else len(range(self._stream.shard, end, self._stream.shards))

    def is_known(self, block: int) -> bool:
        """True if the block's files are known."""
        if self.end is not None:
            return block < self.end
        return self.per_epoch > 0 and (self.complete or self._stream.block_of_run(block) < self.per_epoch)

    def epoch_of(self, block: int) -> int:
        """Epoch of the known block."""
        return self._stream.block_of_run(block) // self.per_epoch

    def range_of(self, block: int) -> int:
        """Index of the known block's range."""
        return bisect_right(self._first_block, self._stream.block_of_run(block) % self.per_epoch) - 1

    def last_block(self, index: int) -> int:
        """Number, in an epoch, of the block after the last one of a known range."""
        return self._first_block[index + 1]

    def files(self, block: int) -> list[int]:
        """Indices in the inventory of the known block's files, in order."""
        epoch, in_epoch = divmod(self._stream.block_of_run(block), self.per_epoch)
        index = self.range_of(block)
        first = (in_epoch - self._first_block[index]) * self._stream.block_files
        return self._order(epoch, index)[first : first + self._stream.block_files]

    def _permuted(self, epoch: int, index: int) -> list[int]:
        first, end = self._first_file[index], self._first_file[index + 1]
        if not self._stream.shuffle:
            return list(range(first, end))
        key = (epoch, index) if index else (epoch,)
        order = generator(Stream.FILES, self._seed, *key).permutation(end - first) + first
        numbers: list[int] = order.tolist()
        return numbers


class SlotCapacity:
    """Capacity of one slot in rows and particles."""

    def __init__(self, workload: EventSchema, stream: StreamConfig) -> None:
        self._workload = workload
        self._stream = stream
        self._slot_bytes = stream.slot_bytes
        one_event = self.bytes_needed(1, stream.outlier_above)
        if one_event > self._slot_bytes:
            raise BadInputError(
                f"stream.slot_mib = {stream.slot_mib:g} holds {self._slot_bytes} bytes, but one event of "
                f"{stream.outlier_above} particles needs {one_event}: set stream.slot_mib to "
                f"{math.ceil(one_event / 2**20 * 4) / 4:g} or more, or lower stream.max_particles_per_event "
                "(where that is 0, stream.max_particles)"
            )

    def bytes_needed(self, rows: int, particles: int) -> int:
        """Upper bound of a unit's bytes."""
        microbatches = min(rows, max_microbatches(rows, particles, self._stream))
        return slot_bytes_needed(self._workload, Layout(rows, particles, microbatches))

    def fits(self, rows: int, particles: int) -> bool:
        """True if any unit of these counts fits a slot."""
        return self.bytes_needed(rows, particles) <= self._slot_bytes

    @cached_property
    def particles(self) -> int:
        """Maximum particles in a unit of one event."""
        return bisect_right(range(self._slot_bytes), self._slot_bytes, key=partial(self.bytes_needed, 1)) - 1

    @property
    def largest_event(self) -> int:
        """Maximum particles of a readable event, outliers included: see common/plan.py."""
        return self.particles * outlier_share(self._stream)


def max_microbatches(events: int, particles: int, stream: StreamConfig) -> int:
    """Maximum number of microbatches that the decoder can make of these counts."""
    # In a greedy cut any two neighbours together exceed max_particles, so 2 P / max_particles bounds the extra cuts; or
    # they exceed max_squared_particles, and Σ N² is at most P times the largest N.
    cuts = 2 * particles // stream.max_particles
    if stream.max_squared_particles:
        cuts += 2 * particles * stream.outlier_above // stream.max_squared_particles
    return math.ceil(events / stream.microbatch_events) + cuts + 1


def cut_spans(counts: npt.NDArray[np.integer], capacity: SlotCapacity, stream: StreamConfig) -> tuple[Span, ...]:
    """Spans of a row group that each fit a unit, given the particles of every row.

    An outlier is stored separately, but decoded with the others, and may lose enough fillers to be no outlier. So it
    counts as the largest event of a slot, or as a share of its particles: see common/plan.py. No event may have more
    than ``capacity.largest_event``.
    """
    counts = np.asarray(counts)
    weights = np.minimum(counts, stream.outlier_above)
    np.maximum(weights, -(-counts // outlier_share(stream)), out=weights)
    before = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(weights, out=before[1:])
    batch_rows = _batch_rows(counts, capacity)
    spans: list[Span] = []
    first = 0
    most_rows = math.ceil(len(counts) / max(math.ceil(len(counts) / stream.unit_events), 1))  # spans of equal size
    while first < len(counts):
        # The longest span that fits, by bisection: a row group may have ten million rows. One row always fits.
        fits, too_many = 1, min(most_rows, len(counts) - first) + 1
        while too_many - fits > 1:
            rows = (fits + too_many) // 2
            if capacity.fits(rows, int(before[first + rows] - before[first])):
                fits = rows
            else:
                too_many = rows
        spans.append(Span(first, fits, int(before[first + fits] - before[first]), batch_rows))
        first += fits
    return tuple(spans)


def _batch_rows(counts: npt.NDArray[np.integer], capacity: SlotCapacity) -> int:
    """Largest power of two of rows such that no batch, without its largest event, exceeds a slot's particles; 0 if the
    readers' default sizes satisfy that."""
    most = capacity.particles + int(counts.max(initial=0))
    if len(counts) <= MOST_BATCH_ROWS and counts.sum(dtype=np.int64) <= most:
        return 0
    rows = MOST_BATCH_ROWS
    while rows > 1:
        in_batch = np.add.reduceat(counts, np.arange(0, len(counts), rows), dtype=np.int64)
        if in_batch.max() <= most:
            break
        rows //= 2
    return 0 if rows == MOST_BATCH_ROWS else rows


def plan_block(
    block: int,
    first_k: int,
    epoch: int,
    staged: Sequence[StagedFile],
    *,
    capacity: SlotCapacity,
    stream: StreamConfig,
    seed: int,
    source: Source = Source(),  # noqa: B008  frozen
) -> list[Unit]:
    """Units of one block, numbered from ``first_k``: at least one, which also carries the quarantined files."""
    parts = [part for file in staged if file.footer is not None for part in _parts(file, file.footer)]
    if stream.shuffle:
        order = generator(Stream.ROW_GROUPS, seed, stream.block_of_run(block)).permutation(len(parts))
        parts = [parts[i] for i in order]
        # A row group is decoded from its start: its spans are in file order, at the positions that they have among all.
        spans: dict[tuple[int, int], list[Part]] = {}
        for part in parts:
            spans.setdefault((part.file, part.row_group), []).append(part)
        rest = {key: iter(sorted(group, key=lambda part: part.first_row)) for key, group in spans.items()}
        parts = [next(rest[part.file, part.row_group]) for part in parts]
    quarantined = tuple(
        Quarantined(file.file, -1, file.bad_rows, file.reason) for file in staged if file.footer is None
    )
    packed = list(_pack(parts, capacity, stream)) or [()]
    return [
        Unit(first_k + i, epoch, block, first_k, parts, () if i else quarantined, source)
        for i, parts in enumerate(packed)
    ]


def _parts(file: StagedFile, footer: Footer) -> Iterator[Part]:
    remote = shortened(file.remote, MAX_TEXT_BYTES)
    file_row = file_particle = 0
    for index, group in enumerate(footer.row_groups):
        for span in group.spans or (Span(0, group.rows, group.particles),):
            if span.rows:
                yield Part(
                    file=file.file,
                    path=file.path,
                    row_group=index,
                    first_row=span.first_row,
                    rows=span.rows,
                    particles=span.particles,
                    file_row=file_row,
                    file_particle=file_particle,
                    remote=remote,
                    batch_rows=span.batch_rows,
                )
        file_row += group.rows
        file_particle += group.particles


def _pack(parts: Sequence[Part], capacity: SlotCapacity, stream: StreamConfig) -> Iterator[tuple[Part, ...]]:
    """Units of about equal size: no small one at the end of each block, whose decoding is hardly worth a lease."""
    total = sum(part.rows for part in parts)
    num_units = max(math.ceil(total / stream.unit_events), 1)
    unit: list[Part] = []
    rows = particles = taken = closed = 0
    for part in parts:
        full = taken * num_units >= total * (closed + 1) or len(unit) == MAX_PARTS
        if unit and (full or not capacity.fits(rows + part.rows, particles + part.particles)):
            yield tuple(unit)
            closed = taken * num_units // total
            unit, rows, particles = [], 0, 0
        unit.append(part)
        rows += part.rows
        particles += part.particles
        taken += part.rows
    if unit:
        yield tuple(unit)


PLAN_VERSION = 5
"""Version of the plan, part of the hash: raise it when the same input gives other units."""

_BYTES = 16
_EVERY_RANGE = "every range"


def plan_hash(workload: EventSchema, stream: StreamConfig, seed: int) -> str:
    """Return a hash of everything besides the files that the bytes of a unit depend on: 32 hexadecimal digits."""
    described = dataclasses.asdict(workload)
    del described["physical"]  # no reader uses it
    if not stream.held_out:
        del described["identity"]
    for column in described["source_columns"]:  # these say where the values come from, and the source how they are read
        del column["known_as"], column["part_of_list"]  # name, into and field say it all
    described["source"] = workload.source.model_dump(mode="json", exclude={"fields", "columns"})
    settings = {
        "plan": PLAN_VERSION,
        "schema": SCHEMA_VERSION,
        "workload": described,
        "stream": stream.model_dump(mode="json", exclude={"slots"}),  # their number changes no unit, their size does
        "seed": seed,
    }
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=_BYTES).hexdigest()


def files_digest(files: Iterable[tuple[str, int]]) -> str:
    """Digest of (URL, bytes) of every file of a range, in order: 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=_BYTES)
    for url, size_bytes in files:
        # Without its token: a renewed one makes no other plan.
        digest.update(f"{without_tokens(url)}\0{size_bytes}\n".encode())
    return digest.hexdigest()


def inventory_digest(before: str, files: str) -> str:
    """Inventory digest after one more range: of that before it ("" for the first) and its ``files_digest()``."""
    return hashlib.blake2b(f"{before} {files}".encode(), digest_size=_BYTES).hexdigest()


def complete_digest(inventory: str) -> str:
    """Inventory digest of data from the second epoch on: no range can follow without changing its plan."""
    return inventory_digest(inventory, _EVERY_RANGE)
