from __future__ import annotations

import dataclasses
import random
import tracemalloc
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
from common.config import StreamConfig


def limits(kind: Any) -> tuple[Any, Any]:
    """A field's type, and pydantic's description of its limits."""
    assert typing.get_origin(kind) is Annotated, f"{kind} has no limits"
    base, field, *_ = typing.get_args(kind)
    return base, field


def instances(kind: Any) -> st.SearchStrategy[Any]:
    """Instances of a message class, or of what stands in one."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{field.name: instances(hints[field.name]) for field in dataclasses.fields(kind)})
    base, field = limits(kind)
    if typing.get_origin(base) is tuple:
        return st.lists(instances(typing.get_args(base)[0]), max_size=3).map(tuple)
    if base is bool:
        return st.booleans()
    if base is str:
        return st.text(max_size=60)
    least = next(limit.ge for limit in field.metadata if isinstance(limit, annotated_types.Ge))
    return st.integers(least, most_of(field))


def most_of(field: Any) -> int:
    """The largest number that a field takes."""
    most = [limit.le for limit in field.metadata if isinstance(limit, annotated_types.Le)]
    most += [limit.lt - 1 for limit in field.metadata if isinstance(limit, annotated_types.Lt)]
    return min([*most, 2**63 - 1])


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


def largest(kind: Any, text: str) -> Any:
    """The largest instance of a message class, or of what stands in one; texts of ``text``."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return kind(**{field.name: largest(hints[field.name], text) for field in dataclasses.fields(kind)})  # type: ignore[operator]
    base, field = limits(kind)
    if typing.get_origin(base) is tuple:
        most = [limit.max_length for limit in field.metadata if isinstance(limit, annotated_types.MaxLen)]
        assert most, f"{base} may be of any length"
        return (largest(typing.get_args(base)[0], text),) * most[0]
    if base is bool:
        return True
    if base is str:
        most = [limit.max_length for limit in field.metadata if isinstance(limit, annotated_types.MaxLen)]
        assert most or kind == m.Reason, "only a reason may be of any length when it is given"
        return text * min(100_000, *[longest // len(text.encode()) for longest in most], 10**6)
    return most_of(field)


@pytest.mark.parametrize("text", ["x", "é", "🙂", "\x00"])
@pytest.mark.parametrize("name", m.MESSAGE_CLASSES)
def test_the_largest_message_of_each_class_is_still_a_message(name: str, text: str) -> None:
    message = largest(m.MESSAGE_CLASSES[name], text)
    raw = m.encode(message)
    assert len(raw) <= m.MAX_MESSAGE_BYTES
    assert m.decode(raw) == message


@settings(max_examples=60, deadline=None)
@given(
    reasons=st.lists(
        st.text(max_size=30).flatmap(lambda text: st.integers(0, 400).map(lambda n: text * n)), max_size=40
    ),
    times=st.integers(1, 25),
)
def test_a_block_of_bad_files_is_told_whole_whatever_the_reasons_are(reasons: list[str], times: int) -> None:
    bad = tuple(m.Quarantined(i, -1, 10**6 + i, reason) for i, reason in enumerate(reasons * times))
    unit = m.Unit(1, 0, 0, 1, (), bad)
    assert [(one.file, one.rows) for one in unit.quarantined] == [(one.file, one.rows) for one in bad]
    assert sum(len(one.reason.encode()) for one in unit.quarantined) <= m.MAX_REASONS_BYTES
    assert m.Unit(1, 0, 0, 1, (), unit.quarantined) == unit, "what was shortened stays as it is"
    for short, one in zip(unit.quarantined, bad, strict=True):
        assert short.reason == one.reason or one.reason.startswith(short.reason.removesuffix("…"))


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("x" * 2000, "x" * 2000),
        ("x" * 2001, "x" * 1997 + "…"),
        ("🙂" * 500, "🙂" * 500),
        ("🙂" * 501, "🙂" * 499 + "…"),
        ("\udcff.parquet", "\\udcff.parquet"),  # of a name that is no UTF-8
    ],
)
def test_a_reason_is_shortened_and_never_refused(text: str, short: str) -> None:
    assert m.Quarantined(0, -1, 0, text).reason == short
    assert m.decode(m.encode(m.Failed(1, 1, text))) == m.Failed(1, 1, short)


def test_a_message_that_no_receiver_takes_is_an_error_at_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.messages.codec.MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(ValueError, match=r"a Attach of \d+ bytes: a message has 1000 at most"):
        m.encode(m.Attach(0, 1, "", m.Cursor(), bad_files=tuple(range(1000))))


def test_the_settings_limits_are_those_of_the_messages() -> None:
    StreamConfig(block_files=m.MAX_BLOCK_FILES)
    with pytest.raises(ValidationError, match="less than or equal to 1024"):
        StreamConfig(block_files=m.MAX_BLOCK_FILES + 1)


def test_no_bytes_raise_anything_but_malformed_message() -> None:
    rng = random.Random(1)
    good = [m.encode(lease()), m.encode(m.Hello(2)), m.encode(m.Attach(0, 1, "ab", m.Cursor(), (1, 2)))]
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
        {"op": "Failed", "v": V, "k": 1, "lease": 1, "reason": 5},
        {"op": "Attach", "v": V, "rank": 0, "ranks": 1, "plan_hash": "x" * 4097, "cursor": {}},
        {"op": "Attach", "v": V, "rank": 0, "ranks": 1, "plan_hash": "é" * 2049, "cursor": {}},
        {"op": "Attach", "v": V, "rank": 0, "ranks": 257, "plan_hash": "", "cursor": {}},
        {"op": "Reject", "v": V, "k": -1, "reason": "another unit"},
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


def hostile(**fields: Any) -> bytes:
    packed = msgpack.packb({"op": "Attach", "v": V, "rank": 0, "ranks": 1, "plan_hash": "", "cursor": {}} | fields)
    assert isinstance(packed, bytes)
    return packed


def arrays(element: bytes, num: int, length: int) -> bytes:
    """A Attach-sized array of arrays."""
    return b"\xdd" + num.to_bytes(4, "big") + (b"\xdd" + length.to_bytes(4, "big") + element * length) * num


@pytest.mark.parametrize(
    "raw",
    [
        hostile(bad_files=(-1,) * 1_000_000),
        hostile(bad_files=(-1,) * 100_000),
        hostile(bad_files=(1.5,) * 100_000),
        hostile(bad_files=("x",) * 100_000),
        hostile(cursor=({},) * 100_000),
        hostile(cursor={str(i): i for i in range(100_000)}),
        hostile(more={str(i): i for i in range(64)}),
        arrays(b"\x80", 10, 100_000),
        arrays(b"\x91\x01", 9, 50_000),
        arrays(b"\x90", 10, 100_000),
        arrays(b"\xcb12345678", 10, 11_000),
        b"\xdf" + (300_000).to_bytes(4, "big") + b"\x01\x02" * 300_000,
        msgpack.packb({"op": "Unit" * 200_000, "v": V}),
    ],
    ids=lambda raw: f"{len(raw)} of {raw[:1]!r}{raw[-3:]!r}",
)
def test_a_megabyte_of_nonsense_costs_little_memory_and_gives_a_short_complaint(raw: bytes) -> None:
    assert len(raw) <= m.MAX_MESSAGE_BYTES
    tracemalloc.start()
    with pytest.raises(m.MalformedMessage) as error:
        m.decode(raw)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 * m.MAX_MESSAGE_BYTES
    assert len(str(error.value)) < 300
