"""Values in messages: units and their parts, counts, cursors; each field bounded."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

MAX_TRAINERS = 256
MAX_PARTS = 64
"""Maximum parts of one unit."""
MAX_BLOCK_FILES = 1024
"""Maximum files of one block: all may be bad, and are listed with its first unit."""
MAX_BAD_FILES = 100_000
"""Maximum files that a run may quarantine, whatever its budget: a trainer lists all of them when it attaches."""
MAX_TEXT_BYTES = 4096
"""Maximum length of a text: that of a path."""
MAX_REASON_BYTES = 2000
MAX_RULES = 32
"""Maximum rules of a unit's invalid events that are told apart."""
MAX_EXAMPLE_BYTES = 600
MAX_EXAMPLES = 3
"""Maximum events that are shown for a rule."""
MAX_REASONS_BYTES = 256 * 1024
"""Maximum size of all reasons of a block's files together."""


def shortened(text: str, max_bytes: int = MAX_REASON_BYTES) -> str:
    """Text in at most ``max_bytes`` of UTF-8: its end may be cut off; characters outside UTF-8 are escaped."""
    raw = text.encode(errors="backslashreplace")
    if len(raw) > max_bytes:
        raw = raw[: max_bytes - 3].decode(errors="ignore").encode() + "…".encode()
    return raw.decode()


def _is_short(text: str) -> str:
    if len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise ValueError(f"more than {MAX_TEXT_BYTES} bytes")
    return text


Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
FileNumber = Annotated[int, Field(strict=True, ge=0, lt=2**32)]
Text = Annotated[str, Field(strict=True, max_length=MAX_TEXT_BYTES), AfterValidator(_is_short)]
Reason = Annotated[
    str, Field(strict=True), BeforeValidator(lambda text: shortened(text) if isinstance(text, str) else text)
]
"""Text for people, shortened from any length."""
Example = Annotated[str, Field(strict=True, max_length=MAX_EXAMPLE_BYTES)]
"""Rule, or an event that breaks it, in words."""
Digest = Annotated[str, Field(strict=True, max_length=64)]
"""Digest as text: only compared."""
FileNumbers = Annotated[tuple[FileNumber, ...], Field(max_length=MAX_BAD_FILES, fail_fast=True)]

CHECKED = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=CHECKED)
class Part:
    """Rows of one row group of one file, which are a part of a unit."""

    file: Count
    """Index in the inventory."""
    path: Text
    """Local path of the staged file."""
    row_group: Count
    first_row: Count
    """First row of this part, counted in the row group."""
    rows: Count
    particles: Count
    """Upper bound, from the file's footer."""
    file_row: Count
    """Row of the file at which the row group starts."""
    file_particle: Count = 0
    """Particle of the file at which the row group starts; exact where the file counts them (HDF5)."""
    remote: Text = ""
    """URL of a remote file; empty for a local one."""
    batch_rows: Count = 0
    """Maximum rows in a record batch of the row group, by the planned memory; 0: the reader's default."""

    @property
    def name(self) -> str:
        """Name of the file for the user."""
        return self.remote or self.path


@dataclass(frozen=True, config=CHECKED)
class Quarantined:
    """Bad data excluded from the stream: a file (row_group -1) or one of its row groups."""

    file: Count
    row_group: Annotated[int, Field(strict=True, ge=-1)]
    rows: Count
    """Number of its events, as far as known."""
    reason: Reason


@dataclass(frozen=True, config=CHECKED)
class InvalidEvents:
    """Events that were set aside one by one, because their values break the same rule."""

    rule: Example
    events: Count
    examples: Annotated[tuple[Example, ...], Field(max_length=MAX_EXAMPLES, fail_fast=True)] = ()
    """File, row group, row and value of the first ones."""


def _shortened_together(bad: tuple[Quarantined, ...]) -> tuple[Quarantined, ...]:
    """Same items with reasons of MAX_REASONS_BYTES at most in all: an equal share for each."""
    if len(bad) * MAX_REASON_BYTES <= MAX_REASONS_BYTES:
        return bad
    if sum(len(one.reason.encode()) for one in bad) <= MAX_REASONS_BYTES:
        return bad
    share = MAX_REASONS_BYTES // len(bad)
    return tuple(dataclasses.replace(one, reason=shortened(one.reason, share)) for one in bad)


BlockQuarantined = Annotated[
    tuple[Quarantined, ...],
    Field(max_length=MAX_BLOCK_FILES, fail_fast=True),
    AfterValidator(_shortened_together),
]
"""Files of one block without units."""


@dataclass(frozen=True, config=CHECKED)
class Source:
    """Part of the inventory that contains these data and all before them."""

    ranges: Count = 0
    """Number of ranges, from the first on."""
    digest: Text = ""
    """Inventory digest of the ranges (common/plan_hash.py)."""


@dataclass(frozen=True, config=CHECKED)
class Unit:
    """Events decoded under one lease into one slot."""

    k: Count
    """Number in the plan, counted over all epochs."""
    epoch: Count
    block: Count
    """Number of the block, counted over all epochs."""
    block_first_unit: Count
    """k of the first unit of the block."""
    parts: Annotated[tuple[Part, ...], Field(max_length=MAX_PARTS, fail_fast=True)]
    quarantined: BlockQuarantined = ()
    """Files of the block without units; sent with the block's first unit, so that they are counted once."""
    source: Source = Source()

    @property
    def rows(self) -> int:
        """Number of events before any filter."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, config=CHECKED)
class Layout:
    """Counts that determine the position of every array in a slot."""

    events: Count
    particles: Count
    microbatches: Count


@dataclass(frozen=True, config=CHECKED)
class Tally:
    """Fate of the events of one unit: rows_read = events in the slot + outliers + empty + quarantined + held_out +
    invalid."""

    rows_read: Count = 0
    outliers: Count = 0
    empty: Count = 0
    """Events dropped because they have no particles."""
    quarantined: Count = 0
    particles_dropped: Count = 0
    bad: Annotated[tuple[Quarantined, ...], Field(max_length=MAX_PARTS, fail_fast=True)] = ()
    """Data quarantined while decoding."""
    held_out: Count = 0
    """Events held out of training; where only those are read, the others."""
    outside_values: Reason = ""
    """Values among the unit's first ones that lie outside of their physical ranges; empty if none does."""
    invalid: Count = 0
    """Events set aside because of their values."""
    broken_rules: Annotated[tuple[InvalidEvents, ...], Field(max_length=MAX_RULES, fail_fast=True)] = ()
    """The same events by the rule that they break."""

    def adds_up(self, layout: Layout) -> bool:
        """True if every row has one fate."""
        left_out = self.outliers + self.empty + self.quarantined + self.held_out + self.invalid
        return layout.events + left_out == self.rows_read


@dataclass(frozen=True, config=CHECKED)
class Cursor:
    """Position in the stream of a shard of the first data that the weights of a checkpoint were not trained on."""

    block: Count = 0
    block_first_unit: Count = 0
    unit: Count = 0
    microbatch: Count = 0
