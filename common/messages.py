"""Typed messages between the dispatcher and its peers: frozen dataclasses, msgpack on the wire.

    decoder -> dispatcher   Hello Decoding Done Failed Beat Bye
    dispatcher -> decoder   Lease Retire Stop
    trainer -> dispatcher   Attach Want Release Reject Committed Finished
    dispatcher -> trainer   DeliveredUnit CommitRequest End Refuse

A wire message is a msgpack map of the message's fields plus ``op`` (its class) and ``v`` (the protocol's version).
Everything that arrives is validated: wrong types, unknown fields and negative counts raise MalformedMessage.

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

PROTOCOL_VERSION = 4
MAX_MESSAGE_BYTES = 1 << 20
"""A message is below 1 kB, but for a unit of many small row groups: 64 long paths, or 64 reasons why they are bad."""

MAX_LANES = 256
MAX_PARTS = 64
"""Parts of one unit."""
MAX_BLOCK_FILES = 1024
"""Files of one block: all may be bad, and are named with its first unit."""
MAX_BAD_FILES = 100_000
"""Files that a run may quarantine, whatever its budget says: a trainer names all of them when it attaches."""
MAX_TEXT_BYTES = 4096
"""As long as a path may be."""
MAX_REASON_BYTES = 2000
MAX_REASONS_BYTES = 256 * 1024
"""Of all reasons of a block's files together."""
_MAX_NODES = 4096
"""Maps and arrays in one message: more than the largest has, and little memory."""


def shortened(text: str, max_bytes: int = MAX_REASON_BYTES) -> str:
    """``text`` in at most ``max_bytes`` of UTF-8: its end may be cut off; what UTF-8 can't express is escaped."""
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
"""A text for people, of any length when it is given: shortened."""
Digest = Annotated[str, Field(strict=True, max_length=64)]
"""Compared, and nothing else."""
FileNumbers = Annotated[tuple[FileNumber, ...], Field(max_length=MAX_BAD_FILES, fail_fast=True)]

_checked = ConfigDict(extra="forbid")


class MalformedMessage(Exception):
    """What arrived is no message of this protocol."""


# ------------------------------------------------------------------ what messages are made of


@dataclass(frozen=True, config=_checked)
class Part:
    """Rows of one row group of one file: what a unit is cut from."""

    file: Count
    """Index in the inventory."""
    path: Text
    """Local path of the staged file."""
    row_group: Count
    first_row: Count
    """Of this part, counted in the row group."""
    rows: Count
    particles: Count
    """Upper bound, from the file's footer."""
    file_row: Count
    """Row of the file at which the row group starts."""
    file_particle: Count = 0
    """Particle of the file at which the row group starts; exact where the file counts them (HDF5)."""
    remote: Text = ""
    """URL of a file that was staged from elsewhere."""
    batch_rows: Count = 0
    """Most rows of a record batch of the row group that memory is planned for; 0: as many as a reader takes."""

    @property
    def name(self) -> str:
        """The file as the user knows it."""
        return self.remote or self.path


@dataclass(frozen=True, config=_checked)
class Quarantined:
    """Something that was set aside because it is bad: a file (row_group -1) or one of its row groups."""

    file: Count
    row_group: Annotated[int, Field(strict=True, ge=-1)]
    rows: Count
    """Events that it held, as far as known."""
    reason: Reason


def _shortened_together(bad: tuple[Quarantined, ...]) -> tuple[Quarantined, ...]:
    """The same with reasons of MAX_REASONS_BYTES at most: an equal share for each."""
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
"""Files of one block that gave no units."""


@dataclass(frozen=True, config=_checked)
class Source:
    """The part of the inventory that data, and all before it, came from."""

    ranges: Count = 0
    """The first so many ranges."""
    digest: Text = ""
    """Their inventory digest (common/plan_hash.py)."""


@dataclass(frozen=True, config=_checked)
class Unit:
    """What one lease covers and one slot holds."""

    k: Count
    """Number in the plan, counted over all epochs."""
    epoch: Count
    block: Count
    """Number of the block, counted over all epochs."""
    block_first_unit: Count
    """k of the first unit of the block."""
    parts: Annotated[tuple[Part, ...], Field(max_length=MAX_PARTS, fail_fast=True)]
    quarantined: BlockQuarantined = ()
    """Files of the block that gave no units; told with the block's first unit, so that they are counted once."""
    source: Source = Source()

    @property
    def rows(self) -> int:
        """Events before any filter."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, config=_checked)
class Layout:
    """Counts from which the place of every array in a slot follows."""

    events: Count
    particles: Count
    microbatches: Count


@dataclass(frozen=True, config=_checked)
class Tally:
    """Fate of the events of one unit: rows_read = events in the slot + outliers + empty + quarantined."""

    rows_read: Count = 0
    outliers: Count = 0
    empty: Count = 0
    """Dropped because they have no particles."""
    quarantined: Count = 0
    particles_dropped: Count = 0
    bad: Annotated[tuple[Quarantined, ...], Field(max_length=MAX_PARTS, fail_fast=True)] = ()
    """What was quarantined while decoding."""


@dataclass(frozen=True, config=_checked)
class Cursor:
    """The first data of a lane that the weights of a checkpoint have not seen."""

    block: Count = 0
    block_first_unit: Count = 0
    unit: Count = 0
    microbatch: Count = 0


Cursors = Annotated[tuple[Cursor, ...], Field(max_length=MAX_LANES, fail_fast=True)]


# ------------------------------------------------------------------ decoder -> dispatcher


@dataclass(frozen=True, config=_checked)
class Hello:
    """A decoder is ready for ``credit`` leases."""

    credit: Annotated[int, Field(strict=True, ge=1, le=1024)]


@dataclass(frozen=True, config=_checked)
class Decoding:
    """The decoder begins unit k: if it dies now, this unit is blamed."""

    k: Count
    lease: Count


@dataclass(frozen=True, config=_checked)
class Done:
    """The slot of unit k is filled; the decoder will not touch it again."""

    k: Count
    lease: Count
    layout: Layout
    tally: Tally
    content: Digest = ""
    """Of the events in the slot: their sources in order, and the microbatches' bounds (common/ragged.py)."""


@dataclass(frozen=True, config=_checked)
class Failed:
    """Unit k could not be decoded this time; the decoder will not touch its slot again."""

    k: Count
    lease: Count
    reason: Reason
    gone: Annotated[bool, Field(strict=True)] = False
    """A staged file is not on the disk any more: the unit is not to blame."""
    machine: Annotated[bool, Field(strict=True)] = False
    """Something is wrong with the decoder's machine: the unit is never to blame, and any decoder may try it again."""


@dataclass(frozen=True, config=_checked)
class Beat:
    """The decoder makes progress inside a unit."""


@dataclass(frozen=True, config=_checked)
class Bye:
    """The decoder leaves and has stopped writing; its leases go back."""


# ------------------------------------------------------------------ dispatcher -> decoder


@dataclass(frozen=True, config=_checked)
class Lease:
    """The right to fill ``slot`` with ``unit``."""

    lease: Count
    slot: Count
    unit: Unit


@dataclass(frozen=True, config=_checked)
class Retire:
    """Finish what you hold, then say Bye."""


@dataclass(frozen=True, config=_checked)
class Stop:
    """The run is over."""


# ------------------------------------------------------------------ trainer -> dispatcher


@dataclass(frozen=True, config=_checked)
class Attach:
    """A trainer wants its lanes from their cursors on.

    Rank r of R takes the lanes l with l mod R = r. All ranks train from one checkpoint, so that each knows the cursors
    of all lanes: the first to come says where planning begins.
    """

    rank: Count
    ranks: Annotated[int, Field(strict=True, ge=1, le=MAX_LANES)]
    plan_hash: Text
    cursors: Cursors
    """Of every lane, in order."""
    bad_files: FileNumbers = ()
    """Whole files that its journal says are quarantined."""
    source: Source = Source()
    """What its weights have seen data of; an inventory that differs there is another plan."""


@dataclass(frozen=True, config=_checked)
class Want:
    """The trainer takes this many more units of a lane."""

    lane: Count
    units: Annotated[int, Field(strict=True, ge=1, le=1024)]


@dataclass(frozen=True, config=_checked)
class Release:
    """The trainer has copied unit k out of its slot."""

    k: Count


@dataclass(frozen=True, config=_checked)
class Reject:
    """The slot of unit k does not hold what was delivered: decode it again."""

    k: Count
    reason: Reason


@dataclass(frozen=True, config=_checked)
class Committed:
    """A checkpoint with these cursors is on disk: nothing before them will be asked for again."""

    cursors: Cursors
    """Of every lane, in order; those of other ranks' lanes are not looked at."""


@dataclass(frozen=True, config=_checked)
class Finished:
    """The trainer needs no more units: the run is over once every lane's trainer says so."""


# ------------------------------------------------------------------ dispatcher -> trainer


@dataclass(frozen=True, config=_checked)
class DeliveredUnit:
    """Unit k stands in ``slot``; without a slot (-1) it was skipped, for the reason in ``tally.bad``."""

    k: Count
    epoch: Count
    block: Count
    block_first_unit: Count
    slot: Annotated[int, Field(strict=True, ge=-1)]
    lease: Count
    layout: Layout
    tally: Tally
    block_quarantined: BlockQuarantined
    """Files of the block that gave no units (with the block's first unit)."""
    bad_files: FileNumbers = ()
    """Files that gave no units, of all blocks that begin behind the lane's former unit: this unit's k depends on them,
    whichever lane counts them."""
    source: Source = Source()
    content: Digest = ""
    """As in Done; empty for a unit that was skipped."""


@dataclass(frozen=True, config=_checked)
class CommitRequest:
    """The disk budget is used up by data behind the trainer: write a checkpoint, so that it can be evicted."""


@dataclass(frozen=True, config=_checked)
class End:
    """The plan has no more units for this lane."""

    lane: Count


@dataclass(frozen=True, config=_checked)
class Refuse:
    """The peer can't take part, and why."""

    reason: Reason
    other_inventory: Annotated[bool, Field(strict=True)] = False
    """Its checkpoint was trained on other files: it may begin this plan anew."""


DecoderMessage: TypeAlias = Hello | Decoding | Done | Failed | Beat | Bye
TrainerMessage: TypeAlias = Attach | Want | Release | Reject | Committed | Finished
ToDecoder: TypeAlias = Lease | Retire | Stop | Refuse
ToTrainer: TypeAlias = DeliveredUnit | CommitRequest | End | Refuse
Message: TypeAlias = DecoderMessage | TrainerMessage | ToDecoder | ToTrainer

MESSAGE_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in dict.fromkeys(get_args(Message))}
_ADAPTERS = {name: TypeAdapter(cls) for name, cls in MESSAGE_CLASSES.items()}


def encode(message: Message) -> bytes:
    """The message as it goes over the wire. Raises ValueError for one that no receiver would take."""
    fields = vars(message) | {"op": type(message).__name__, "v": PROTOCOL_VERSION}
    packed = msgpack.packb(fields, default=vars)  # as dataclasses.asdict would have it, in a tenth of the time
    assert isinstance(packed, bytes)
    if len(packed) > MAX_MESSAGE_BYTES:
        name = type(message).__name__
        raise ValueError(f"a {name} of {len(packed)} bytes: a message has {MAX_MESSAGE_BYTES} at most")
    return packed


def decode(raw: bytes) -> Message:
    """The message in ``raw``. Raises MalformedMessage for anything else, at a cost in proportion to its size."""
    fields = unpack(raw)
    if fields.pop("v", None) != PROTOCOL_VERSION:
        raise MalformedMessage(f"not a message of protocol version {PROTOCOL_VERSION}")
    name = fields.pop("op", None)
    adapter = _ADAPTERS.get(name) if isinstance(name, str) else None
    if adapter is None:
        raise MalformedMessage(f"unknown message {name!r:.80}")
    try:
        message: Message = adapter.validate_python(fields)
    except (ValidationError, TypeError) as error:
        raise MalformedMessage(f"{name}: {first_error(error)}") from None
    return message


def unpack(raw: bytes) -> dict[Any, Any]:
    """The map in ``raw``. Raises MalformedMessage for anything else, before it takes much memory."""
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


def first_error(error: ValidationError | TypeError) -> str:
    """What is wrong and where, in a line; of many errors the first."""
    if isinstance(error, TypeError):
        return f"{error!s:.200}"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:200]
