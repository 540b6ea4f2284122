from __future__ import annotations

import pytest

from common.durations import duration


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
