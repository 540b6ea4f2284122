"""Checksums of transfers in the format of list files and origins: `adler32=0123abcd`."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Callable
from typing import Protocol

from common.errors import BadInputError

ORIGIN_ALGORITHMS = ("adler32", "md5", "crc32")
"""Algorithms requested from an origin, best first."""
_ZLIB_BYTES = 4
_DIGEST_BYTES = {"adler32": _ZLIB_BYTES, "crc32": _ZLIB_BYTES, "md5": 16, "sha1": 20, "sha256": 32}


class Hasher(Protocol):
    """Incremental hash of bytes."""

    def update(self, data: bytes) -> None:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Digest of all bytes so far, in lower case."""


class _Zlib:
    def __init__(self, function: Callable[[bytes, int], int], start: int) -> None:
        self._function, self._value = function, start

    def update(self, data: bytes) -> None:
        self._value = self._function(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value & 0xFFFFFFFF:08x}"


def hasher(checksum: str) -> Hasher:
    """Hasher for a checksum `algorithm=value`. Raises BadInputError for an unknown algorithm."""
    algorithm = checksum.partition("=")[0]
    match algorithm:
        case "adler32":
            return _Zlib(zlib.adler32, 1)
        case "crc32":
            return _Zlib(zlib.crc32, 0)
        case "md5" | "sha1" | "sha256":
            return hashlib.new(algorithm, usedforsecurity=False)
    raise BadInputError(f"checksum {checksum!r}: expected adler32, crc32, md5, sha1 or sha256")


def is_checksum(text: str) -> bool:
    """True for `algorithm=value` with a digest of the algorithm's length, in hexadecimal or base64."""
    algorithm, _, value = text.partition("=")
    if algorithm not in _DIGEST_BYTES:
        return False
    num_bytes = _DIGEST_BYTES[algorithm]
    shortest = 1 if num_bytes == _ZLIB_BYTES else 2 * num_bytes  # some servers omit leading zeros of an adler32
    if re.fullmatch(f"[0-9A-Fa-f]{{{shortest},{2 * num_bytes}}}", value):
        return True
    return _from_base64(value) is not None and len(_from_base64(value) or b"") == num_bytes


def from_digest(header: str) -> str:
    """Best checksum in a Digest header (RFC 3230); empty if none: an invalid header must not make a file bad."""
    found = dict(digest.strip().partition("=")[::2] for digest in header.split(",") if "=" in digest)
    told = (f"{name}={found[name]}" for name in ORIGIN_ALGORITHMS if name in found)
    return next((checksum for checksum in told if is_checksum(checksum)), "")


def matches(checksum: str, found: Hasher) -> bool:
    """True if the bytes have this checksum. Origins write md5 in base64, adler32 sometimes without leading zeros."""
    value = checksum.partition("=")[2].strip()
    digest = found.hexdigest()
    if value.lower().zfill(len(digest)) == digest:
        return True
    return (_from_base64(value) or b"").hex() == digest


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error, and non-ASCII text
        return None
