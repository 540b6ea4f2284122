"""Messages that nobody should send: good ones, changed in every way that bytes and msgpack allow. Seeded."""

from __future__ import annotations

import dataclasses
import random
import typing
from collections.abc import Callable
from typing import Annotated, Any

import annotated_types
import msgpack

from common import messages as m

COUNTS = (0, 1, 2, 7, 255, 2**16, 2**31, 2**32, 2**53, 2**62, 2**63 - 1)
HUGE = (2**63, 2**64 - 1, -1, -(2**63), -(2**31))
ODD: tuple[Any, ...] = (
    *(None, True, False, 0.0, -0.5, 1.0, float("nan"), float("inf"), "", "x" * 5000, "op", "\x00", "🙂", b"", b"\xff"),
    *([], [[]], {}, {"k": 1}, [0] * 300, {"": None}, *HUGE),
    *(msgpack.Timestamp(1), msgpack.Timestamp(2**40, 5), msgpack.ExtType(5, b"abc"), msgpack.ExtType(127, b"")),
)


def fuzzed(rng: random.Random) -> bytes:
    """One message, changed; now and then it is still a good one."""
    return rng.choice(_WAYS)(rng)


def good(rng: random.Random, cls: type[Any] | None = None) -> Any:
    """A well-formed message of a class (or of any) with arbitrary values, the extremes often."""
    return _instance(rng, cls or m.MESSAGE_CLASSES[rng.choice(sorted(m.MESSAGE_CLASSES))])


def _instance(rng: random.Random, kind: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return kind(**{field.name: _instance(rng, hints[field.name]) for field in dataclasses.fields(kind)})  # type: ignore[operator]
    assert typing.get_origin(kind) is Annotated, f"{kind} has no limits"
    base, field, *_ = typing.get_args(kind)
    if typing.get_origin(base) is tuple:
        return tuple(_instance(rng, typing.get_args(base)[0]) for _ in range(rng.choice((0, 0, 1, 3))))
    if base is bool:
        return rng.random() < 0.5
    if base is str:
        longest = min([60_000, *longest_of(field)])
        return rng.choice(("", "ab" * 16, "x" * longest, "a\nb", "\x00", "é🙂", "../../etc/passwd"))
    least = max((limit.ge for limit in field.metadata if isinstance(limit, annotated_types.Ge)), default=0)
    return min(max(rng.choice((*COUNTS, rng.randrange(20))), least), most_of(field))


def most_of(field: Any) -> int:
    """The largest number that a field takes."""
    most = [limit.le for limit in field.metadata if isinstance(limit, annotated_types.Le)]
    most += [limit.lt - 1 for limit in field.metadata if isinstance(limit, annotated_types.Lt)]
    return min([*most, 2**63 - 1])


def longest_of(field: Any) -> list[int]:
    """The largest length that a field takes, if it has one."""
    return [limit.max_length for limit in field.metadata if isinstance(limit, annotated_types.MaxLen)]


def _fields(rng: random.Random) -> dict[str, Any]:
    fields = msgpack.unpackb(m.encode(good(rng)))
    assert isinstance(fields, dict)
    return fields


def _packed(fields: Any) -> bytes:
    packed = msgpack.packb(fields)
    assert isinstance(packed, bytes)
    return packed


def _bits(rng: random.Random) -> bytes:
    raw = bytearray(m.encode(good(rng)))
    for _ in range(rng.randint(1, 8)):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def _truncated(rng: random.Random) -> bytes:
    raw = m.encode(good(rng))
    return raw[: rng.randrange(len(raw))]


def _longer(rng: random.Random) -> bytes:
    return m.encode(good(rng)) + rng.choice((rng.randbytes(rng.randint(1, 40)), m.encode(good(rng))))


def _swapped(rng: random.Random) -> bytes:
    """Some values, at any depth, of another type."""
    return _packed(_swap(rng, _fields(rng)))


def _swap(rng: random.Random, value: Any) -> Any:
    if rng.random() < 0.2:
        return rng.choice(ODD)
    if isinstance(value, dict):
        return {name: _swap(rng, each) for name, each in value.items()}
    if isinstance(value, list):
        return [_swap(rng, each) for each in value]
    return value


def _other_fields(rng: random.Random) -> bytes:
    fields = _fields(rng)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice([*fields, "more", "__class__", b"k", "", "K"])
        if rng.random() < 0.5:
            fields.pop(name, None)
        else:
            fields[name] = rng.choice(ODD)
    return _packed(fields)


def _twice(rng: random.Random) -> bytes:
    """A map with a field that comes twice, as no packer writes it."""
    pairs = [*_fields(rng).items(), ("op", rng.choice([*m.MESSAGE_CLASSES])), ("v", m.PROTOCOL_VERSION)]
    return bytes([0xDE, 0, len(pairs)]) + b"".join(_packed(name) + _packed(value) for name, value in pairs)


def _deep(rng: random.Random) -> bytes:
    depth = rng.choice((1, 10, 500, 1023, 1025, 20_000))
    inside = rng.choice((b"\x91", b"\x81\xa1a")) * depth + b"\xc0"
    return rng.choice((inside, b"\x82\xa2op\xa4Beat\xa1v" + inside))


def _claims_much(rng: random.Random) -> bytes:
    """A header that announces far more than follows."""
    header = rng.choice((b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"))
    return header + rng.choice((2**32 - 1, 2**31, 2**20)).to_bytes(4, "big") + rng.randbytes(rng.randrange(20))


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 2, 20, 1000)))


_WAYS: tuple[Callable[[random.Random], bytes], ...] = (
    *(_bits, _truncated, _longer, _swapped, _other_fields, _twice, _deep, _claims_much, _noise),
)
