from __future__ import annotations

import dataclasses
import random
import tracemalloc
import typing
from collections import Counter
from typing import Any

import msgpack
import pytest
from fuzzed_messages import fuzzed, good, longest_of, most_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from common import messages as m
from common.config import StreamConfig


@pytest.mark.parametrize("name", m.MESSAGE_CLASSES)
def test_every_message_is_the_same_after_the_wire(name: str) -> None:
    rng = random.Random(5)
    for _ in range(25):
        message = good(rng, m.MESSAGE_CLASSES[name])
        decoded = m.decode(m.encode(message))
        assert (type(decoded), decoded) == (m.MESSAGE_CLASSES[name], message)


V = m.PROTOCOL_VERSION


def largest(kind: Any, text: str) -> Any:
    """The largest instance of a message class, or of what stands in one; texts of ``text``."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return kind(**{field.name: largest(hints[field.name], text) for field in dataclasses.fields(kind)})  # type: ignore[operator]
    base, field, *_ = typing.get_args(kind)
    if typing.get_origin(base) is tuple:
        most = longest_of(field)
        assert most, f"{base} may be of any length"
        return (largest(typing.get_args(base)[0], text),) * most[0]
    if base is bool:
        return True
    if base is str:
        most = longest_of(field)
        assert most or kind == m.Reason, "only a reason may be of any length when it is given"
        return text * min(100_000, *[longest // len(text.encode()) for longest in most], 10**6)
    return most_of(field)


@pytest.mark.parametrize("text", ["x", "🙂"])
@pytest.mark.parametrize("name", m.MESSAGE_CLASSES)
def test_the_largest_message_of_each_class_is_still_a_message(name: str, text: str) -> None:
    message = largest(m.MESSAGE_CLASSES[name], text)
    raw = m.encode(message)
    assert len(raw) <= m.MAX_MESSAGE_BYTES
    assert m.decode(raw) == message


@settings(max_examples=15, deadline=None)
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
    monkeypatch.setattr("common.messages.MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(ValueError, match=r"a Attach of \d+ bytes: a message has 1000 at most"):
        m.encode(m.Attach(0, 1, "", m.Cursor(), bad_files=tuple(range(1000))))


def test_the_settings_limits_are_those_of_the_messages() -> None:
    StreamConfig(block_files=m.MAX_BLOCK_FILES)
    with pytest.raises(ValidationError, match="less than or equal to 1024"):
        StreamConfig(block_files=m.MAX_BLOCK_FILES + 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "Hello", "v": V, "credit": 0},
        {"op": "Hello", "v": V, "credit": "2"},
        {"op": "Hello", "v": V, "credit": 2, "more": 1},
        {"op": "Hello", "v": 99, "credit": 2},
        {"op": "Nobody", "v": V},
        {"op": "Release", "v": V, "k": -1},
        {"op": "Release", "v": V, "k": 2**63},
        {"op": "Failed", "v": V, "k": 1, "lease": 1, "reason": 5},
        {"op": "Attach", "v": V, "rank": 0, "ranks": 1, "plan_hash": "é" * 2049, "cursor": {}},
        {"op": "Attach", "v": V, "rank": 0, "ranks": 257, "plan_hash": "", "cursor": {}},
        {"op": "Reject", "v": V, "k": -1, "reason": "another unit"},
    ],
)
def test_a_message_with_a_wrong_field_is_malformed(fields: dict[str, Any]) -> None:
    with pytest.raises(m.MalformedMessage):
        m.decode(msgpack.packb(fields))


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
        hostile(bad_files=("x",) * 100_000),
        hostile(cursor={str(i): i for i in range(100_000)}),
        arrays(b"\x80", 10, 100_000),
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


# ------------------------------------------------------------------ fuzzed

MANY = 1_500


def test_fuzzed_messages_are_malformed_or_messages_and_nothing_else() -> None:
    rng = random.Random(3)
    fates: Counter[str] = Counter()
    for _ in range(MANY):
        raw = fuzzed(rng)
        try:
            message = m.decode(raw)
        except m.MalformedMessage:
            fates["malformed"] += 1
        else:
            assert type(message) is m.MESSAGE_CLASSES[type(message).__name__]
            assert m.decode(m.encode(message)) == message
            fates["message"] += 1
    assert fates["malformed"] > MANY * 0.8
    assert fates["message"] > 15, "a fuzzer that makes no good message finds nothing behind the decoder"


@pytest.mark.parametrize("depth", [10, 1_000_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\x81\xa2op"])
def test_no_depth_of_nesting_is_anything_but_malformed(depth: int, opening: bytes) -> None:
    with pytest.raises(m.MalformedMessage):
        m.decode((opening * depth)[: m.MAX_MESSAGE_BYTES] + b"\xc0")
