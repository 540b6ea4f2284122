"""Checksums of transfers: `adler32=0123abcd`, as list files and origins give them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable
from typing import Protocol

from common.errors import BadInputError

ORIGIN_ALGORITHMS = ("adler32", "md5", "crc32")
"""What an origin is asked for, best first."""


class Hasher(Protocol):
    """Grows with the bytes."""

    def update(self, data: bytes) -> None:
        """More bytes."""

    def hexdigest(self) -> str:
        """Of all bytes so far, in lower case."""


class _Zlib:
    def __init__(self, function: Callable[[bytes, int], int], start: int) -> None:
        self._function, self._value = function, start

    def update(self, data: bytes) -> None:
        self._value = self._function(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value & 0xFFFFFFFF:08x}"


def hasher(checksum: str) -> Hasher:
    """For a checksum `algorithm=value`. Raises BadInputError for an algorithm that is not known."""
    algorithm = checksum.partition("=")[0]
    match algorithm:
        case "adler32":
            return _Zlib(zlib.adler32, 1)
        case "crc32":
            return _Zlib(zlib.crc32, 0)
        case "md5" | "sha1" | "sha256":
            return hashlib.new(algorithm, usedforsecurity=False)
    raise BadInputError(f"checksum {checksum!r}: expected adler32, crc32, md5, sha1 or sha256")


def matches(checksum: str, found: Hasher) -> bool:
    """True if the bytes have this checksum. Origins write md5 in base64, adler32 at times without leading zeros."""
    value = checksum.partition("=")[2].strip()
    digest = found.hexdigest()
    if value.lower().zfill(len(digest)) == digest:
        return True
    try:
        return base64.b64decode(value, validate=True).hex() == digest
    except binascii.Error:
        return False
