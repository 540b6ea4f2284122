from __future__ import annotations

import random
from collections import Counter

import pytest
from fuzzed_messages import fuzzed

from common import messages as m

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
