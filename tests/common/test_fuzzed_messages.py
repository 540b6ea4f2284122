from __future__ import annotations

import contextlib
import dataclasses
import random
import typing
from collections import Counter
from typing import Annotated, Any

import msgpack
import pytest
from fuzzed_messages import fuzzed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common import messages as m
from common.transport import wire

MANY = 10_000


def test_ten_thousand_fuzzed_messages_are_malformed_or_messages_and_nothing_else() -> None:
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
    assert fates["message"] > 100, "a fuzzer that makes no good message finds nothing behind the decoder"


@pytest.mark.parametrize("depth", [10, 1_000, 100_000, 1_000_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\x81\xa2op"])
def test_no_depth_of_nesting_is_anything_but_malformed(depth: int, opening: bytes) -> None:
    with pytest.raises(m.MalformedMessage):
        m.decode((opening * depth)[: m.MAX_MESSAGE_BYTES] + b"\xc0")


# ------------------------------------------------------------------ valid in form, hostile in value

NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63)]),
    st.integers(0, 20),
)
TEXTS = st.one_of(
    st.sampled_from(["", "x" * 4096, "x" * 4097, "é" * 2048, "é" * 2049, "x" * 70_000, "\x1b]52;c;\x07", "../../etc"]),
    st.text(max_size=20),
)
OTHERS = st.sampled_from([None, True, 1.5, float("nan"), b"", "1", [], {}, [[]], {"k": 1}])
LENGTHS = st.sampled_from([0, 1, 2, 64, 65, 256, 257, 1024, 1025, 3000])


def hostile(kind: Any) -> st.SearchStrategy[Any]:
    """What stands in a message where ``kind`` should, as msgpack has it: the right structure, any length and value."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return st.fixed_dictionaries({field.name: hostile(hints[field.name]) for field in dataclasses.fields(kind)})
    base = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    if typing.get_origin(base) is tuple:
        return st.builds(lambda one, length: [one] * length, hostile(typing.get_args(base)[0]), LENGTHS)
    if base is bool:
        return st.booleans()
    return TEXTS if base is str else NUMBERS


@st.composite
def hostile_messages(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from(sorted(m.MESSAGE_CLASSES)))
    fields = draw(hostile(m.MESSAGE_CLASSES[name]))
    for spoilt in draw(st.lists(st.sampled_from([*fields, "more"]), max_size=1)):
        fields[spoilt] = draw(OTHERS)
    packed = msgpack.packb({"op": name, "v": m.PROTOCOL_VERSION, **fields})
    assert isinstance(packed, bytes)
    return packed


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(raw=hostile_messages())
def test_messages_of_the_right_form_with_hostile_values_are_messages_within_the_limits_or_malformed(raw: bytes) -> None:
    complaint = ""
    try:
        message = m.decode(raw)
    except m.MalformedMessage as error:
        complaint = str(error)
    else:
        again = m.encode(message)
        assert len(again) <= m.MAX_MESSAGE_BYTES
        assert m.decode(again) == message
    assert len(complaint) < 300


@settings(max_examples=60, deadline=None)
@given(
    raw=st.one_of(
        st.binary(max_size=60),
        st.builds(
            lambda fields, version: msgpack.packb({"v": version, **fields}),
            st.dictionaries(
                st.sampled_from(["plan_hash", "slots", "slot_bytes", "more"]), st.one_of(NUMBERS, TEXTS, OTHERS)
            ),
            st.one_of(st.just(m.PROTOCOL_VERSION), NUMBERS, OTHERS),
        ),
    )
)
@pytest.mark.parametrize("kind", [wire.Join, wire.Welcome])
def test_no_handshake_raises_anything_but_what_is_told(kind: Any, raw: bytes) -> None:
    with contextlib.suppress(m.MalformedMessage, wire.OtherVersion):
        assert isinstance(wire.decode_handshake(raw, kind), kind)
