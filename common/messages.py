"""Typed messages between the dispatcher and its peers: frozen dataclasses, msgpack on the wire.

    decoder -> dispatcher   Hello Decoding Done Failed Beat Bye
    dispatcher -> decoder   Lease Retire Stop
    trainer -> dispatcher   Attach Want Release Reject Committed Finished Bye
    dispatcher -> trainer   DeliveredUnit CommitRequest End Refuse

A wire message is a msgpack map of the message's fields plus ``op`` (its class) and ``v`` (the protocol's version).
Every received message is validated: wrong types, unknown fields and negative counts raise MalformedMessage.

Every field is bounded, and so is every message: the largest of each class is below MAX_MESSAGE_BYTES (a test builds
them). Reasons are shortened where a message is built, never refused: counts and rows stay exact, and the fetcher's log
has the whole text.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, TypeAlias, get_args

import msgpack
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from common.process import MAX_TRAINERS

PROTOCOL_VERSION = 7
MAX_MESSAGE_BYTES = 1 << 20
"""Maximum size: messages are below 1 kB, except for a unit of many small row groups: 64 long paths or reasons."""
_MAX_NODES = 4096
"""Maximum number of maps and arrays in one message: more than in the largest one, and little memory."""
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
    """Return the text in at most ``max_bytes`` of UTF-8: its end may be cut off; other characters are escaped."""
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

_CHECKED = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_CHECKED)
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


@dataclass(frozen=True, config=_CHECKED)
class Quarantined:
    """Bad data excluded from the stream: a file (row_group -1) or one of its row groups."""

    file: Count
    row_group: Annotated[int, Field(strict=True, ge=-1)]
    rows: Count
    """Number of its events, as far as known."""
    reason: Reason


@dataclass(frozen=True, config=_CHECKED)
class InvalidEvents:
    """Events that were set aside one by one, because their values break the same rule."""

    rule: Example
    events: Count
    examples: Annotated[tuple[Example, ...], Field(max_length=MAX_EXAMPLES, fail_fast=True)] = ()
    """File, row group, row and value of the first ones."""


def _shortened_together(bad: tuple[Quarantined, ...]) -> tuple[Quarantined, ...]:
    """Return the same items with reasons of MAX_REASONS_BYTES at most in all: an equal share for each."""
    if len(bad) * MAX_REASON_BYTES <= MAX_REASONS_BYTES:
        return bad
    if sum(len(one.reason.encode()) for one in bad) <= MAX_REASONS_BYTES:
        return bad
    share = MAX_REASONS_BYTES // len(bad)
    return tuple(dataclasses.replace(one, reason=shortened(one.reason, share)) for one in bad)


BlockQuarantined = Annotated[
    tuple[Quarantined, ...], Field(max_length=MAX_BLOCK_FILES, fail_fast=True), AfterValidator(_shortened_together)
]
"""Files of one block without units."""


@dataclass(frozen=True, config=_CHECKED)
class Source:
    """Part of the inventory that contains these data and all before them."""

    ranges: Count = 0
    """Number of ranges, from the first on."""
    digest: Text = ""
    """Inventory digest of the ranges (common/plan.py)."""


@dataclass(frozen=True, config=_CHECKED)
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


@dataclass(frozen=True, config=_CHECKED)
class Layout:
    """Counts that determine the position of every array in a slot."""

    events: Count
    particles: Count
    microbatches: Count


@dataclass(frozen=True, config=_CHECKED)
class Tally:
    """Fate of the events of one unit: rows_read = events in the slot + outliers + empty + quarantined + held_out +
    filtered + invalid."""

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
    filtered: Count = 0
    """Events that don't fulfil `stream.where`."""
    outside_values: Reason = ""
    """Values among the unit's first ones that lie outside of their physical ranges; empty if none does."""
    invalid: Count = 0
    """Events set aside because of their values."""
    broken_rules: Annotated[tuple[InvalidEvents, ...], Field(max_length=MAX_RULES, fail_fast=True)] = ()
    """The same events by the rule that they break."""

    def adds_up(self, layout: Layout) -> bool:
        """Return True if every row has one fate."""
        left_out = self.outliers + self.empty + self.quarantined + self.held_out + self.filtered + self.invalid
        return layout.events + left_out == self.rows_read


@dataclass(frozen=True, config=_CHECKED)
class Cursor:
    """Position in the stream of a shard of the first data that the weights of a checkpoint were not trained on."""

    block: Count = 0
    block_first_unit: Count = 0
    unit: Count = 0
    microbatch: Count = 0


# ------------------------------------------------------------------ decoder -> dispatcher


@dataclass(frozen=True, config=_CHECKED)
class Hello:
    """A decoder is ready for ``credit`` leases."""

    credit: Annotated[int, Field(strict=True, ge=1, le=1024)]


@dataclass(frozen=True, config=_CHECKED)
class Decoding:
    """The decoder begins unit k: if it dies now, this unit is taken as the cause."""

    k: Count
    lease: Count


@dataclass(frozen=True, config=_CHECKED)
class Done:
    """The slot of unit k is filled; the decoder will not touch it again."""

    k: Count
    lease: Count
    layout: Layout
    tally: Tally
    content: Digest = ""
    """Digest of the events in the slot: their sources in order, and the microbatches' bounds (unit_arrays.py)."""


@dataclass(frozen=True, config=_CHECKED)
class Failed:
    """Unit k could not be decoded this time; the decoder will not touch its slot again."""

    k: Count
    lease: Count
    reason: Reason
    gone: Annotated[bool, Field(strict=True)] = False
    """A staged file is no longer on the disk: the unit is not the cause."""
    machine: Annotated[bool, Field(strict=True)] = False
    """Fault of the decoder's machine: the unit is never the cause, and any decoder may retry it."""


@dataclass(frozen=True, config=_CHECKED)
class Beat:
    """The decoder makes progress inside a unit."""


@dataclass(frozen=True, config=_CHECKED)
class Bye:
    """The decoder leaves and has stopped writing; its leases are returned. Or a trainer leaves."""


# ------------------------------------------------------------------ dispatcher -> decoder


@dataclass(frozen=True, config=_CHECKED)
class Lease:
    """Right to fill ``slot`` with ``unit``."""

    lease: Count
    slot: Count
    unit: Unit
    failures: Count = 0
    """Times that the unit has failed: then the decoder tries its parts one at a time first."""


@dataclass(frozen=True, config=_CHECKED)
class Retire:
    """Request to finish the leased units and then send Bye."""


@dataclass(frozen=True, config=_CHECKED)
class Stop:
    """End of the run."""


# ------------------------------------------------------------------ trainer -> dispatcher


@dataclass(frozen=True, config=_CHECKED)
class Attach:
    """Request of one of the trainers of a shard for its units, from a cursor on.

    All of them get every unit, and train from one checkpoint: the first one to attach sets the start of planning.
    """

    rank: Count
    ranks: Annotated[int, Field(strict=True, ge=1, le=MAX_TRAINERS)]
    plan_hash: Text
    cursor: Cursor
    bad_files: FileNumbers = ()
    """Files that are quarantined as a whole, from its journal."""
    source: Source = Source()
    """Part of the inventory that its weights were trained on; an inventory that differs there is another plan."""


@dataclass(frozen=True, config=_CHECKED)
class Want:
    """Request for this many more units."""

    units: Annotated[int, Field(strict=True, ge=1, le=1024)]


@dataclass(frozen=True, config=_CHECKED)
class Release:
    """The trainer has copied unit k out of its slot."""

    k: Count


@dataclass(frozen=True, config=_CHECKED)
class Reject:
    """The slot of unit k does not hold what was delivered: decode it again."""

    k: Count
    reason: Reason


@dataclass(frozen=True, config=_CHECKED)
class Committed:
    """A checkpoint with this cursor is on disk: nothing before it will be requested again."""

    cursor: Cursor
    waits: Annotated[bool, Field(strict=True)] = False
    """The trainer can't go on without a unit of this dispatcher: not another rank, or another shard, holds it up."""


@dataclass(frozen=True, config=_CHECKED)
class Finished:
    """The trainer needs no more units: the run is over once every trainer has sent this."""


# ------------------------------------------------------------------ dispatcher -> trainer


@dataclass(frozen=True, config=_CHECKED)
class DeliveredUnit:
    """Unit k is in ``slot``; without a slot (-1) it was skipped, for the reason in ``tally.bad``."""

    k: Count
    epoch: Count
    block: Count
    block_first_unit: Count
    slot: Annotated[int, Field(strict=True, ge=-1)]
    lease: Count
    layout: Layout
    tally: Tally
    block_quarantined: BlockQuarantined
    """Files of the block without units (sent with the block's first unit)."""
    source: Source = Source()
    content: Digest = ""
    """Digest as in Done; empty for a skipped unit."""


@dataclass(frozen=True, config=_CHECKED)
class CommitRequest:
    """Request for a checkpoint: the disk is full of data already trained on, which can be evicted after it."""


@dataclass(frozen=True, config=_CHECKED)
class End:
    """The plan has no more units."""


@dataclass(frozen=True, config=_CHECKED)
class Refuse:
    """Refusal of a peer, with the reason."""

    reason: Reason
    other_inventory: Annotated[bool, Field(strict=True)] = False
    """The peer's checkpoint was trained on other files: it may begin this plan again."""


# ------------------------------------------------------------------ on the wire


class MalformedMessage(Exception):
    """Received bytes are no message of this protocol."""


DecoderMessage: TypeAlias = Hello | Decoding | Done | Failed | Beat | Bye
TrainerMessage: TypeAlias = Attach | Want | Release | Reject | Committed | Finished | Bye
ToDecoder: TypeAlias = Lease | Retire | Stop | Refuse
ToTrainer: TypeAlias = DeliveredUnit | CommitRequest | End | Refuse
Message: TypeAlias = DecoderMessage | TrainerMessage | ToDecoder | ToTrainer

MESSAGE_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in dict.fromkeys(get_args(Message))}
_ADAPTERS = {name: TypeAdapter(cls) for name, cls in MESSAGE_CLASSES.items()}


def encode(message: Message) -> bytes:
    """Return the message as bytes. Raises ValueError for a message larger than receivers accept."""
    fields = vars(message) | {"op": type(message).__name__, "v": PROTOCOL_VERSION}
    packed = msgpack.packb(fields, default=vars)  # same result as dataclasses.asdict, in a tenth of the time
    assert isinstance(packed, bytes)
    if len(packed) > MAX_MESSAGE_BYTES:
        name = type(message).__name__
        raise ValueError(f"a {name} of {len(packed)} bytes: a message has {MAX_MESSAGE_BYTES} at most")
    return packed


def decode(raw: bytes) -> Message:
    """Return the message in ``raw``. Raises MalformedMessage for anything else, at a cost in proportion to its size."""
    fields = _unpack(raw)
    if fields.pop("v", None) != PROTOCOL_VERSION:
        raise MalformedMessage(f"not a message of protocol version {PROTOCOL_VERSION}")
    name = fields.pop("op", None)
    adapter = _ADAPTERS.get(name) if isinstance(name, str) else None
    if adapter is None:
        raise MalformedMessage(f"unknown message {name!r:.80}")
    try:
        message: Message = adapter.validate_python(fields)
    except (ValidationError, TypeError) as error:
        raise MalformedMessage(f"{name}: {_first_error(error)}") from None
    return message


def _unpack(raw: bytes) -> dict[Any, Any]:
    """Return the map in ``raw``. Raises MalformedMessage for anything else, before it takes much memory."""
    if len(raw) > MAX_MESSAGE_BYTES:
        raise MalformedMessage(f"{len(raw)} bytes, at most {MAX_MESSAGE_BYTES}")
    nodes = 0

    def count(node: Any) -> Any:
        nonlocal nodes
        nodes += 1
        if nodes > _MAX_NODES:
            raise ValueError(f"more than {_MAX_NODES} maps and arrays")
        return node

    hooks = {"object_hook": count, "list_hook": count}
    try:
        fields = msgpack.unpackb(
            raw, use_list=False, max_array_len=MAX_BAD_FILES, max_map_len=64, max_ext_len=0, **hooks
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedMessage(f"not msgpack: {error!s:.200}") from None
    if not isinstance(fields, dict):
        raise MalformedMessage("not a map")
    return fields


def _first_error(error: ValidationError | TypeError) -> str:
    """Return the first error and its field, in a line."""
    if isinstance(error, TypeError):
        return f"{error!s:.200}"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:200]
