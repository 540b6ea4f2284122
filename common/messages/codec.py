"""Encoding and decoding of messages: unions of each channel, and checks of received bytes."""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

import msgpack
from pydantic import TypeAdapter, ValidationError

from common.messages.decoder import Beat, Bye, Decoding, Done, Failed, Hello, Lease, Retire, Stop
from common.messages.trainer import (
    Attach,
    CommitRequest,
    Committed,
    DeliveredUnit,
    End,
    Finished,
    Refuse,
    Reject,
    Release,
    Want,
)
from common.messages.values import MAX_BAD_FILES

PROTOCOL_VERSION = 7
MAX_MESSAGE_BYTES = 1 << 20
"""Maximum size: messages are below 1 kB, except for a unit of many small row groups: 64 long paths or reasons."""
_MAX_NODES = 4096
"""Maximum number of maps and arrays in one message: more than in the largest one, and little memory."""


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
    """Message as bytes. Raises ValueError for a message larger than receivers accept."""
    fields = vars(message) | {"op": type(message).__name__, "v": PROTOCOL_VERSION}
    packed = msgpack.packb(fields, default=vars)  # same result as dataclasses.asdict, in a tenth of the time
    assert isinstance(packed, bytes)
    if len(packed) > MAX_MESSAGE_BYTES:
        name = type(message).__name__
        raise ValueError(f"a {name} of {len(packed)} bytes: a message has {MAX_MESSAGE_BYTES} at most")
    return packed


def decode(raw: bytes) -> Message:
    """Message in ``raw``. Raises MalformedMessage for anything else, at a cost in proportion to its size."""
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
    """Map in ``raw``. Raises MalformedMessage for anything else, before it takes much memory."""
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
    """First error and its field, in a line."""
    if isinstance(error, TypeError):
        return f"{error!s:.200}"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:200]
