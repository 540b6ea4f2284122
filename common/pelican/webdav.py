"""Parser of directory listings: names and sizes from a WebDAV multistatus answer. Pure."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote
from xml.parsers import expat

from common.pelican.answers import number

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
            if _is_name(name):
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
            self._end_response()
        self._parser.CharacterDataHandler = None

    def _end_response(self) -> None:
        if not self._href:
            raise MalformedListing("an entry without a name")
        if len(self._responses) >= _MAX_RESPONSES:
            raise MalformedListing(f"more than {_MAX_RESPONSES} entries")
        size_bytes = number(self._size) if self._size is not None else 0
        self._responses.append(
            (self._href, -1 if size_bytes is None else size_bytes, self._is_dir or self._href.endswith("/"))
        )

    def _characters(self, text: str) -> None:
        self._num_chars += len(text)
        if self._num_chars > _MAX_HREF:
            raise MalformedListing(f"a name or number of more than {_MAX_HREF} characters")
        self._text.append(text)


def parse_listing(body: bytes, path: str, *, raw_names: bool) -> Listing:
    """Listing of ``path`` from a complete body. Raises MalformedListing."""
    parser = ListingParser()
    parser.feed(body)
    return parser.listing(path, raw_names=raw_names)


def _refuse_doctype(*_: object) -> None:
    raise MalformedListing("it declares a document type, which no listing needs")


def _checked(size_bytes: int, is_dir: bool, href: str) -> int:
    """Checked size of a file; a directory's is ignored."""
    if size_bytes < 0 and not is_dir:
        raise MalformedListing(f"a size that is none, of {href[-200:]!a}")
    return max(size_bytes, 0)


def _place(href: str, *, raw_names: bool) -> str:
    """Path of an entry; empty if it isn't UTF-8, since no request could name it."""
    _, scheme, rest = href.partition("://")
    path = "/" + rest.partition("/")[2] if scheme else href
    try:
        return path if raw_names else unquote(path, errors="strict")
    except UnicodeDecodeError:
        return ""


def _is_name(name: str) -> bool:
    if name in ("", ".", "..") or "/" in name or _CONTROL.search(name):
        return False
    return len(name.encode()) <= _MAX_NAME_BYTES  # XML has no surrogates
