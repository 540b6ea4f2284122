"""Answers of servers: errors, and strict parsers of numbers, checksums, token headers, listings. Pure."""

from __future__ import annotations

import base64
import codecs
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote
from xml.parsers import expat

from common.errors import BadInputError, IcestreamError, TransientError

_MOST_TOLD = 12


class _Attempted(IcestreamError):
    """Error with the attempts made: of each the server (scheme, host and port), and its answer or the error."""

    def __init__(self, text: str, attempts: Sequence[str] = ()) -> None:
        told = [*attempts[:_MOST_TOLD]]
        if len(attempts) > _MOST_TOLD:
            told.append(f"and {len(attempts) - _MOST_TOLD} more")
        super().__init__(text + (f" ({'; '.join(told)})" if told else ""))
        self.attempts = tuple(attempts)


class NotFoundError(_Attempted, BadInputError):
    """No source has the file."""


class DeniedError(_Attempted, BadInputError):
    """Every source refuses access: the token is missing, expired, or of another scope."""


class CorruptError(_Attempted, BadInputError):
    """Bytes of every source disagree with the inventory."""


class UnavailableError(_Attempted, TransientError):
    """No source could be reached, or none delivered: it may work later."""


class BadTokenError(BadInputError):
    """Content of a token's place is no token, or may not be used."""


class TokenExpired(TransientError):
    """No valid token now. The text gives the remedy; after it the next attempt finds the new token."""


# -------------------------------------------------------------- numbers


MAX_SIZE_BYTES = (1 << 63) - 1
"""Largest size that the ledger can store."""


def number(text: str) -> int | None:
    """Return the number in ASCII digits, at most MAX_SIZE_BYTES. str.isdigit() accepts ``²``, and int() at most 4,300
    digits."""
    value = int(text) if re.fullmatch("[0-9]{1,19}", text) else None
    return value if value is not None and value <= MAX_SIZE_BYTES else None


def json_object(text: bytes | str) -> dict[str, Any] | None:
    """JSON object; None for any other text, such as one nested more deeply than Python's stack."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


# -------------------------------------------------------------- checksums


ORIGIN_ALGORITHMS = ("adler32", "md5", "crc32")
"""Algorithms requested from an origin, best first."""
_ZLIB_BYTES = 4
_DIGEST_BYTES = {"adler32": _ZLIB_BYTES, "crc32": _ZLIB_BYTES, "md5": 16, "sha1": 20, "sha256": 32}


class Hasher(Protocol):
    """Incremental hash of bytes."""

    def update(self, data: bytes) -> None:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far, in lower case."""


class _Zlib:
    def __init__(self, function: Callable[[bytes, int], int], start: int) -> None:
        self._function, self._value = function, start

    def update(self, data: bytes) -> None:
        self._value = self._function(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value & 0xFFFFFFFF:08x}"


def hasher(checksum: str) -> Hasher:
    """Return the hasher for a checksum `algorithm=value`. Raises BadInputError for an unknown algorithm."""
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
    return len(_from_base64(value) or b"") == num_bytes


def from_digest(header: str) -> str:
    """Return the best checksum in a Digest header (RFC 3230); empty if none: an invalid header must not make a file
    bad."""
    found = dict(digest.strip().partition("=")[::2] for digest in header.split(",") if "=" in digest)
    told = (f"{name}={found[name]}" for name in ORIGIN_ALGORITHMS if name in found)
    return next((checksum for checksum in told if is_checksum(checksum)), "")


def matches(checksum: str, found: Hasher) -> bool:
    """Return True if the bytes have this checksum. Origins write md5 in base64, adler32 sometimes without leading
    zeros."""
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


# -------------------------------------------------------------- headers about tokens


_ISSUER = re.compile(r"https?://[!-~]{1,500}")
_PATH = re.compile(r"(?:/[!-~]*)?")


def scope_base_path(header: str) -> str:
    """Return the prefix of paths that the scopes of tokens omit, from X-Pelican-Token-Generation; empty: none.

    `issuer=https://I, max-scope-depth=3, strategy=OAuth2, base-path=/ns`: only if it names an issuer, by OAuth2.
    """
    values: dict[str, str] = {}
    for name, value in header_fields(header):
        values.setdefault(name, value)
    if not values.get("issuer") or values.get("strategy", "OAuth2").lower() != "oauth2":
        return ""
    base_path = values.get("base-path", "")
    return base_path if _PATH.fullmatch(base_path) else ""


def named_issuers(*headers: str) -> tuple[str, ...]:
    """Return the issuers in X-Pelican-Authorization and X-Pelican-Token-Generation, each once, without a slash at its
    end."""
    fields = [field for header in headers for field in header_fields(header)]
    found = [value.rstrip("/") for name, value in fields if name == "issuer" and _ISSUER.fullmatch(value)]
    return tuple(dict.fromkeys(found))


def header_fields(header: str) -> Iterator[tuple[str, str]]:
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        yield name.strip().lower(), value.strip()


# -------------------------------------------------------------- listings


_DAV = "DAV: "
_RESPONSE, _HREF = f"{_DAV}response", f"{_DAV}href"
_SIZE, _COLLECTION, _IS_COLLECTION = f"{_DAV}getcontentlength", f"{_DAV}collection", f"{_DAV}iscollection"
_TEXTS = frozenset([_HREF, _SIZE, _IS_COLLECTION])
_UNSAFE = re.compile(r"[^!-~]|%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_MAX_NAME_BYTES = 255
_MAX_HREF = 16_384
_MAX_DEPTH = 32
_MAX_RESPONSES = 1 << 21
_MAX_NAMES = 10_000
_MAX_TOKEN_BYTES = 1 << 18
_FEED_BYTES = 1 << 16
_REFUSED_SHOWN = 3


class Entry(NamedTuple):
    """File or directory in a listing. A tuple, since it is created faster than a dataclass: there may be millions."""

    name: str
    size_bytes: int
    is_dir: bool


@dataclass(frozen=True)
class Listing:
    """Answer of a server for a path."""

    entries: tuple[Entry, ...]
    itself: Entry | None
    """Entry of the path itself; a directory, if it is listed."""
    num_refused: int
    """Number of names that can't be names of files there."""
    refused: tuple[str, ...]
    """First few refused names, in ASCII."""


class MalformedListing(Exception):
    """Received bytes are no listing."""


class ListingParser:
    """Incremental parser of a listing. Memory: the entries, and at most about 10 MB for all other input.

    An answer is read as UTF-8, whatever it declares, and must have no DOCTYPE: no listing needs one.
    """

    def __init__(self) -> None:
        self._responses: list[tuple[str, int, bool]] = []
        self._open: list[str] = []
        self._text: list[str] = []
        self._num_chars = 0
        self._href: str | None = None
        self._size: str | None = None
        self._is_dir = False
        self._names: dict[str, str] = {}
        self._prefixes: set[str] = set()
        self._num_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        # Given an encoding, expat ignores the one that the document declares, but not a byte order mark.
        self._parser = expat.ParserCreate("utf-8", " ", self._names)
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = None
        self._parser.StartDoctypeDeclHandler = _refuse_doctype
        self._parser.StartNamespaceDeclHandler = lambda prefix, uri: self._prefixes.add(prefix)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes. Raises MalformedListing."""
        for begin in range(0, len(data), _FEED_BYTES):
            piece = data[begin : begin + _FEED_BYTES]
            self._parse(piece)
            self._num_bytes += len(piece)
            num_names = len(self._names) + len(self._prefixes)
            if self._num_bytes - self._parser.CurrentByteIndex > _MAX_TOKEN_BYTES or num_names > _MAX_NAMES:
                raise MalformedListing("tags that are too long, or too many kinds of them")

    def listing(self, path: str, *, raw_names: bool) -> Listing:
        """Listing of ``path``, once all bytes were fed. Raises MalformedListing.

        ``raw_names``: the server doesn't escape names (XRootD); others escape them, by the standard. A body with
        characters that would have been escaped is taken as raw, too.
        """
        self._parse(b"", is_last=True)
        if not raw_names:
            raw_names = any(_UNSAFE.search(href) for href, _, _ in self._responses)
        listed = path.rstrip("/")
        above = listed + "/"
        entries: dict[str, Entry] = {}
        itself, num_refused = None, 0
        refused: list[str] = []
        for href, size_bytes, is_dir in self._responses:
            place = _place(href, raw_names=raw_names).rstrip("/")
            if place == listed:
                itself = Entry(listed.rpartition("/")[2], _checked(size_bytes, is_dir, href), is_dir)
                continue
            # A server may put its own prefix before the listed path.
            name = place.rpartition(above)[2] if above in place else ""
            is_name = name not in ("", ".", "..") and "/" not in name and not _CONTROL.search(name)
            if is_name and len(name.encode()) <= _MAX_NAME_BYTES:  # XML has no surrogates
                entries[name] = Entry(name, _checked(size_bytes, is_dir, href), is_dir)
            else:
                num_refused += 1
                if len(refused) < _REFUSED_SHOWN:
                    refused.append(ascii(place[-200:]))
        return Listing(tuple(entries.values()), itself, num_refused, tuple(refused))

    def _parse(self, data: bytes, *, is_last: bool = False) -> None:
        try:
            self._decoder.decode(data, is_last)
            self._parser.Parse(data, is_last)
        except UnicodeDecodeError:
            raise MalformedListing("not UTF-8") from None
        except expat.ExpatError as error:
            raise MalformedListing(f"not XML: {error}") from None

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._open and name != f"{_DAV}multistatus":
            raise MalformedListing(f"expected a multistatus, found {name[:80]!a}")
        if len(self._open) >= _MAX_DEPTH:
            raise MalformedListing(f"more than {_MAX_DEPTH} elements inside each other")
        self._open.append(name)
        if name == _RESPONSE and len(self._open) == 2:
            self._href, self._size, self._is_dir = None, None, False
        elif name == _COLLECTION:
            self._is_dir = True
        self._parser.CharacterDataHandler = self._characters if name in _TEXTS else None
        self._text, self._num_chars = [], 0

    def _end(self, name: str) -> None:
        self._open.pop()
        if name in _TEXTS:
            text = "".join(self._text).strip()
            if name == _SIZE:
                self._size = text
            elif name == _IS_COLLECTION:
                self._is_dir |= text == "1"
            elif self._href is None:  # the first one: a status below it may contain others
                self._href = "".join(self._text).strip("\n")
        elif name == _RESPONSE and len(self._open) == 1:
            if not self._href:
                raise MalformedListing("an entry without a name")
            if len(self._responses) >= _MAX_RESPONSES:
                raise MalformedListing(f"more than {_MAX_RESPONSES} entries")
            size_bytes = number(self._size) if self._size is not None else 0
            is_dir = self._is_dir or self._href.endswith("/")
            self._responses.append((self._href, -1 if size_bytes is None else size_bytes, is_dir))
        self._parser.CharacterDataHandler = None

    def _characters(self, text: str) -> None:
        self._num_chars += len(text)
        if self._num_chars > _MAX_HREF:
            raise MalformedListing(f"a name or number of more than {_MAX_HREF} characters")
        self._text.append(text)


def _refuse_doctype(*_: object) -> None:
    raise MalformedListing("it declares a document type, which no listing needs")


def _checked(size_bytes: int, is_dir: bool, href: str) -> int:
    """Checked size of a file; a directory's is ignored."""
    if size_bytes < 0 and not is_dir:
        raise MalformedListing(f"a size that is none, of {href[-200:]!a}")
    return max(size_bytes, 0)


def _place(href: str, *, raw_names: bool) -> str:
    """Return the path of an entry; empty if it isn't UTF-8, since no request could name it."""
    _, scheme, rest = href.partition("://")
    path = "/" + rest.partition("/")[2] if scheme else href
    try:
        return path if raw_names else unquote(path, errors="strict")
    except UnicodeDecodeError:
        return ""
