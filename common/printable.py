"""Printable form of external text (names, servers' messages, files' columns) for terminals, logs and pages. Pure."""

from __future__ import annotations

import re

MOST = 2000
"""Maximum characters shown of one text."""

_REPLACED = "\N{REPLACEMENT CHARACTER}"
_SPACES = re.compile(r"[\t\n\r\x0b\x0c][\t\n\r\x0b\x0c ]*")


def printable(text: str, most: int = MOST) -> str:
    """One line of at most ``most`` characters, without any that moves the cursor, controls a terminal or hides others.

    Removed are C0 and C1 (with which escape sequences begin), line separators, bidirectional and invisible characters,
    surrogates.
    """
    text = _SPACES.sub(" ", text) if not text.isprintable() else text
    text = text if text.isprintable() else "".join(char if char.isprintable() else _REPLACED for char in text)
    return text if len(text) <= most else text[: max(most - 1, 0)] + "…"


def printable_lines(text: str) -> str:
    """Printable form of several lines without a limit, for tracebacks and tables: see printable()."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "\n".join(printable(line, len(line) + 1) for line in text.split("\n"))
