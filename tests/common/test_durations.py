from __future__ import annotations

import pytest

from common.durations import compact_duration, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (200, "3 min 20 s"),
        (7200, "2 h"),
        (7500, "2 h 5 min"),
        (90_061, "1 d 1 h"),
        (97_200, "1 d 3 h"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_compact_duration_has_no_spaces() -> None:
    assert [compact_duration(seconds) for seconds in (7, 250, 97_200)] == ["7s", "4m10s", "1d3h"]
