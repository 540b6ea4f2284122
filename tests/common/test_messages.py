from __future__ import annotations

import dataclasses
import random
import types
import typing
from typing import Annotated, Any

import annotated_types
import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from common import messages as m


def instances(kind: Any) -> st.SearchStrategy[Any]:
    """Instances of a message class, or of what stands in one."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{field.name: instances(hints[field.name]) for field in dataclasses.fields(kind)})
    if typing.get_origin(kind) is tuple:
        return st.lists(instances(typing.get_args(kind)[0]), max_size=3).map(tuple)
    assert typing.get_origin(kind) is Annotated, f"{kind} has no limits"
    base, field = typing.get_args(kind)
    if base is bool:
        return st.booleans()
    if base is str:
        return st.text(max_size=60)
    least = next(limit.ge for limit in field.metadata if isinstance(limit, annotated_types.Ge))
    most = [limit.le for limit in field.metadata if isinstance(limit, annotated_types.Le)]
    most += [limit.lt - 1 for limit in field.metadata if isinstance(limit, annotated_types.Lt)]
    return st.integers(least, min([*most, 2**63 - 1]))


@pytest.mark.parametrize("name", m.MESSAGE_CLASSES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_message_is_the_same_after_the_wire(name: str, data: st.DataObject) -> None:
    message = data.draw(instances(m.MESSAGE_CLASSES[name]))
    assert m.decode(m.encode(message)) == message
    assert type(m.decode(m.encode(message))) is m.MESSAGE_CLASSES[name]


def test_every_dataclass_of_a_channel_is_a_message() -> None:
    for union in (m.DecoderMessage, m.TrainerMessage, m.ToDecoder, m.ToTrainer):
        assert isinstance(union, types.UnionType)
        for cls in typing.get_args(union):
            assert m.MESSAGE_CLASSES[cls.__name__] is cls


V = m.PROTOCOL_VERSION


def lease(num_parts: int = 3, path: str = "/data/icecube/bundles/set-000123/part-000456.parquet") -> m.Lease:
    parts = tuple(
        m.Part(file=i, path=path, row_group=i, first_row=0, rows=10_000, particles=99_999, file_row=10_000 * i)
        for i in range(num_parts)
    )
    return m.Lease(lease=7, slot=3, unit=m.Unit(k=11, epoch=1, block=4, block_first_unit=9, parts=parts))


def test_an_ordinary_lease_is_below_one_kilobyte() -> None:
    assert len(m.encode(lease())) < 1000


def test_the_largest_lease_and_the_worst_tally_are_still_messages() -> None:
    longest = m.encode(lease(num_parts=64, path="/" + "x" * 4095))
    assert m.decode(longest) == lease(num_parts=64, path="/" + "x" * 4095)
    bad = tuple(m.Quarantined(file=i, row_group=0, rows=1, reason="x" * 2000) for i in range(64))
    done = m.Done(k=1, lease=1, layout=m.Layout(0, 0, 0), tally=m.Tally(rows_read=64, quarantined=64, bad=bad))
    assert m.decode(m.encode(done)) == done


def test_no_bytes_raise_anything_but_malformed_message() -> None:
    rng = random.Random(1)
    good = [m.encode(lease()), m.encode(m.Hello(2)), m.encode(m.Attach(0, 1, "ab", (m.Cursor(),), (1, 2)))]
    odd: list[Any] = [None, True, -1, 2**64 - 1, 1.5, "", b"", [], {}, {"a": 1}, [[]], "op", msgpack.Timestamp(1)]
    refused = 0
    for i in range(2000):
        if i % 4 == 0:
            raw = rng.randbytes(rng.randint(0, 80))
        elif i % 4 == 1:  # a good message with a few bytes changed
            changed = bytearray(rng.choice(good))
            for _ in range(rng.randint(1, 4)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            raw = bytes(changed)
        elif i % 4 == 2:
            raw = rng.choice(good)[: rng.randint(0, 60)]
        else:  # well-formed msgpack with values of the wrong kind
            name = rng.choice(list(m.MESSAGE_CLASSES))
            fields = {f.name: rng.choice(odd) for f in dataclasses.fields(m.MESSAGE_CLASSES[name])}
            extra = {rng.choice(["op", "v", "x", b"x"]): rng.choice(odd)} if rng.random() < 0.3 else {}
            raw = msgpack.packb({**fields, "op": name, "v": m.PROTOCOL_VERSION, **extra})
        try:
            m.decode(raw)
        except m.MalformedMessage:
            refused += 1
    assert refused > 1500


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "Hello", "v": V, "credit": 0},
        {"op": "Hello", "v": V, "credit": "2"},
        {"op": "Hello", "v": V, "credit": 2, "more": 1},
        {"op": "Hello", "v": V},
        {"op": "Hello", "v": 99, "credit": 2},
        {"op": "Hello", "credit": 2},
        {"op": "Nobody", "v": V},
        {"op": "Release", "v": V, "k": -1},
        {"op": "Release", "v": V, "k": 2**63},
        {"op": "Reject", "v": V, "k": -1, "reason": "another unit"},
        {"op": "Reject", "v": V, "k": 1, "reason": "x" * 5000},
        {"op": "Failed", "v": V, "k": 1, "lease": 1, "reason": "x" * 5000},
    ],
)
def test_a_message_with_a_wrong_field_is_malformed(fields: dict[str, Any]) -> None:
    with pytest.raises(m.MalformedMessage):
        m.decode(msgpack.packb(fields))


@pytest.mark.parametrize("content", ["a" * 65, b"ab", None])
def test_a_content_that_is_no_short_text_is_malformed(content: Any) -> None:
    with pytest.raises(ValidationError):
        m.Done(1, 1, m.Layout(0, 0, 0), m.Tally(), content)


def test_too_many_bytes_are_malformed() -> None:
    with pytest.raises(m.MalformedMessage, match="at most"):
        m.decode(b"\xc0" * (m.MAX_MESSAGE_BYTES + 1))


def test_a_message_can_not_be_built_with_a_negative_count() -> None:
    with pytest.raises(ValidationError):
        m.Release(-1)
