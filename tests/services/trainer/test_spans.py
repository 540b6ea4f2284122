"""Spans of memory: what is near comes in one transfer, and every byte of the arrays is in one of them."""

from __future__ import annotations

import numpy as np
import pytest

from services.trainer.stream.spans import GAP_BYTES, Spans


@pytest.mark.parametrize(("gap", "number"), [(0, 1), (64, 1), (GAP_BYTES, 1), (GAP_BYTES + 64, 2)])
def test_arrays_are_in_one_span_if_they_are_near(gap: int, number: int) -> None:
    memory = np.zeros(1 << 16, np.uint8)
    first, second = memory[128:228], memory[256 + gap : 256 + gap + 64]  # 228 is rounded up to 256
    spans = Spans([second, first])
    assert len(spans.merged) == number
    assert sum(end - begin for begin, end in spans.merged) == (192 + gap if number == 1 else 192)
    assert spans.place(first) == (0, 0)
    assert spans.place(second) == ((0, 128 + gap) if number == 1 else (1, 0))


def test_an_empty_array_has_a_place_too() -> None:
    memory = np.zeros(1 << 16, np.uint8)
    first, nothing = memory[128:192], memory[640:640]
    spans = Spans([first, nothing])
    assert [end - begin for begin, end in spans.merged] == [64]
    assert spans.place(nothing) == (0, 0)
