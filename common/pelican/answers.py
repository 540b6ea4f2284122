"""Strict parsers of servers' answers: numbers, ranges of bytes, JSON. Pure. None means invalid; nothing raises."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

MAX_SIZE_BYTES = (1 << 63) - 1
"""Largest size that the ledger can store."""

_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")


@dataclass(frozen=True)
class ByteRange:
    """Content-Range header: first and last byte, and the total size (None: not given)."""

    first: int
    last: int
    size_bytes: int | None


def number(text: str, most: int = MAX_SIZE_BYTES) -> int | None:
    """Number in ASCII digits, at most ``most``. str.isdigit() accepts ``²``, and int() at most 4,300 digits."""
    value = int(text) if re.fullmatch("[0-9]{1,19}", text) else None
    return value if value is not None and value <= most else None


def byte_range(header: str) -> ByteRange | None:
    """Content-Range of an answer 206 to one range."""
    found = _RANGE.fullmatch(header.strip(" \t"))
    if found is None:
        return None
    first, last = number(found[1]), number(found[2])
    size_bytes = None if found[3] == "*" else number(found[3])
    if first is None or last is None or last < first or (size_bytes is None and found[3] != "*"):
        return None
    return ByteRange(first, last, size_bytes)


def json_object(text: bytes | str) -> dict[str, Any] | None:
    """JSON object; None for any other text, such as one nested more deeply than Python's stack."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
