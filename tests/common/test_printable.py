"""Text from outside, made fit for a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.printable import printable, printable_lines

OSC_52 = "\x1b]52;c;cm0gLXJmIH4=\x07"
TRICKS = [
    OSC_52,
    "\x1b[2J",
    "\x9b31m",
    "\x9d52;c;x\x9c",
    "a\rb",
    "a\x08b",
    "\u202egnp.exe",
    "\u2066x\u2069",
    "\u200b",
    "\ufeff",
    "a\u2028b\u2029c\x85d",
    "\udcff\ud800",
    "\U000e0041",
    "\x00\x7f",
]


@pytest.mark.parametrize("text", TRICKS)
def test_what_would_steer_a_terminal_is_replaced(text: str) -> None:
    for shown in (printable(text), printable_lines(text)):
        assert shown.isprintable()
        assert shown.encode()


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(), max_size=200), st.integers(1, 100))
def test_whatever_comes_is_one_bounded_printable_line(text: str, most: int) -> None:
    shown = printable(text, most)
    assert shown.isprintable()
    assert len(shown) <= most
    shown.encode()  # no surrogate is left
    assert all(line.isprintable() for line in printable_lines(text).split("\n"))


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(categories=("L", "N", "P", "S"), include_characters=" "), max_size=200))
def test_ordinary_text_of_any_language_stays(text: str) -> None:
    expected = "".join(char if char.isprintable() else "�" for char in text)
    assert printable(text) == expected
    assert not any(unicodedata.category(char)[0] == "C" for char in expected)


def test_lines_stay_lines_and_a_long_text_is_cut() -> None:
    assert printable_lines("a\n  b\n") == "a\n  b\n"
    assert printable("a\n\t b") == "a b"
    assert printable("x" * 5000, 10) == "xxxxxxxxx…"
