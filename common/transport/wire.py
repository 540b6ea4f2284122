"""What goes over a tcp connection between fetcher and trainer: multipart messages, the first frame says which kind.

JOIN      handshake      trainer -> fetcher   the first word: who does not say it is not listened to
WELCOME   handshake      fetcher -> trainer   the answer: the plan, and the size of a slot
MESSAGE   message        both                 as on the control socket (common.messages)
MESSAGE   message, bytes fetcher -> trainer   a DeliveredUnit and what its slot holds
PROBE                    fetcher -> trainer   each second: is the connection still there?
LEAVE                    both                 the trainer has said all; the fetcher has read it all
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, TypeVar

import msgpack
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from common import messages as m

JOIN, WELCOME, MESSAGE, PROBE, LEAVE = b"J", b"W", b"M", b"P", b"L"

_checked = ConfigDict(extra="forbid")


class OtherVersion(Exception):
    """The other side speaks another version of the protocol; its argument is the version."""


@dataclass(frozen=True, config=_checked)
class Join:
    """A trainer wants to take part."""


@dataclass(frozen=True, config=_checked)
class Welcome:
    """What a trainer has to know of the run."""

    plan_hash: Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{32}$")]
    slots: m.Count
    slot_bytes: m.Count


Handshake = TypeVar("Handshake", Join, Welcome)


def encode_handshake(handshake: Join | Welcome) -> bytes:
    """As it goes over the wire."""
    packed = msgpack.packb({"v": m.PROTOCOL_VERSION, **dataclasses.asdict(handshake)})
    assert isinstance(packed, bytes)
    return packed


def decode_handshake(raw: bytes, kind: type[Handshake]) -> Handshake:
    """The handshake in ``raw``. Raises OtherVersion, or MalformedMessage for anything else."""
    fields = m.unpack(raw)
    version = fields.pop("v", None)
    if not isinstance(version, int):
        raise m.MalformedMessage("a handshake without a version")
    if version != m.PROTOCOL_VERSION:
        raise OtherVersion(version)
    try:
        return TypeAdapter(kind).validate_python(fields)
    except (ValidationError, TypeError) as error:
        raise m.MalformedMessage(f"{kind.__name__}: {m.first_error(error)}") from None
