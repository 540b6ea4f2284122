"""Messages of a tcp connection between fetcher and trainer: multipart, with the kind in the first frame.

JOIN      handshake      trainer -> fetcher   first message: without it all others are ignored
WELCOME   handshake      fetcher -> trainer   answer: the plan, and the size of a slot
MESSAGE   message        both                 as on the control socket (common.messages)
MESSAGE   message, bytes fetcher -> trainer   a DeliveredUnit and its slot's content
PROBE                    fetcher -> trainer   each second: test of the connection
LEAVE                    both                 the trainer has sent all messages; the fetcher has read them all
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
    """Other side with another version of the protocol; the argument is the version."""


@dataclass(frozen=True, config=_checked)
class Join:
    """Request of a trainer to join the run."""


@dataclass(frozen=True, config=_checked)
class Welcome:
    """Settings of the run that a trainer needs."""

    plan_hash: Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{32}$")]
    slots: m.Count
    slot_bytes: m.Count


Handshake = TypeVar("Handshake", Join, Welcome)


def encode_handshake(handshake: Join | Welcome) -> bytes:
    """Handshake as bytes."""
    packed = msgpack.packb({"v": m.PROTOCOL_VERSION, **dataclasses.asdict(handshake)})
    assert isinstance(packed, bytes)
    return packed


def decode_handshake(raw: bytes, kind: type[Handshake]) -> Handshake:
    """Handshake in ``raw``. Raises OtherVersion, or MalformedMessage for anything else."""
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
