"""Text from outside (names, messages of servers, columns of files) as a terminal, a log or a page may show it. Pure."""

from __future__ import annotations

import re

MOST = 2000
"""Characters of one text that are shown."""

_REPLACED = "\N{REPLACEMENT CHARACTER}"
_SPACES = re.compile(r"[\t\n\r\x0b\x0c][\t\n\r\x0b\x0c ]*")


def printable(text: str, most: int = MOST) -> str:
    """One line of at most ``most`` characters, without any that moves the cursor, gives orders or hides others.

    C0 and C1 (so no escape sequence begins), line separators, bidirectional and invisible characters, surrogates.
    """
    text = _SPACES.sub(" ", text) if not text.isprintable() else text
    text = text if text.isprintable() else "".join(char if char.isprintable() else _REPLACED for char in text)
    return text if len(text) <= most else text[: max(most - 1, 0)] + "…"


def printable_lines(text: str) -> str:
    """As printable(), line by line and without a limit: tracebacks and tables have several."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "\n".join(printable(line, len(line) + 1) for line in text.split("\n"))
