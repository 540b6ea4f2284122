"""A directory's listing as servers write it: names and sizes out of a WebDAV multistatus answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree

_DAV = "{DAV:}"
_RESPONSE, _HREF = f"{_DAV}response", f"{_DAV}href"
_SIZE, _COLLECTION, _IS_COLLECTION = f"{_DAV}getcontentlength", f"{_DAV}collection", f"{_DAV}iscollection"
_UNSAFE = re.compile(rb"[^!-~]|%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAX_NAME_BYTES = 255


class Entry(NamedTuple):
    """A file or a directory in a listing. A tuple, since it is made faster than a dataclass: there may be millions."""

    name: str
    size_bytes: int
    is_dir: bool


@dataclass(frozen=True)
class Listing:
    """What a server says about a path."""

    entries: tuple[Entry, ...]
    itself: Entry | None
    """The path itself; a directory, if it is listed."""
    refused: tuple[str, ...]
    """Names that can't be names of files there, made printable."""


class MalformedListing(Exception):
    """What arrived is no listing."""


def parse_listing(body: bytes, path: str, *, raw_names: bool) -> Listing:
    """The listing of ``path``.

    ``raw_names``: the server leaves names as they are (XRootD); others escape them, as the standard has it. A body that
    holds what would have been escaped is taken as raw, too. Raises MalformedListing.
    """
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise MalformedListing("it declares entities, which no listing needs")
    try:
        root = ElementTree.fromstring(body)  # expat bounds what entities can do; there are none
    except ElementTree.ParseError as error:
        raise MalformedListing(f"not XML: {error}") from None
    if root.tag != f"{_DAV}multistatus":
        raise MalformedListing(f"expected a multistatus, found {root.tag[:80]}")
    responses = list(_responses(root))
    if not raw_names:
        raw_names = any(_UNSAFE.search(href.encode()) for href, _, _ in responses)
    listed = path.rstrip("/")
    above = listed + "/"
    entries: dict[str, Entry] = {}
    itself, refused = None, []
    for href, size_bytes, is_dir in responses:
        place = (_path_of(href) if raw_names else unquote(_path_of(href))).rstrip("/")
        if place == listed:
            itself = Entry(listed.rpartition("/")[2], size_bytes, is_dir)
            continue
        # A server may put the listed path behind a prefix of its own.
        name = place.rpartition(above)[2] if above in place else ""
        if _is_name(name):
            entries[name] = Entry(name, size_bytes, is_dir)
        else:
            refused.append(ascii(place[-200:]))
    return Listing(tuple(entries.values()), itself, tuple(refused))


def _responses(root: ElementTree.Element) -> Iterator[tuple[str, int, bool]]:
    """(href, size, is it a directory) of every response."""
    for response in root.iterfind(_RESPONSE):
        href = response.findtext(_HREF, "").strip("\n")
        # Element.iter(tag) searches in C: there are ten elements a file, and millions of files.
        size = ""
        for element in response.iter(_SIZE):
            size = (element.text or "").strip()
        is_dir = href.endswith("/") or any(True for _ in response.iter(_COLLECTION))
        is_dir = is_dir or any(element.text == "1" for element in response.iter(_IS_COLLECTION))
        yield href, int(size) if size.isascii() and size.isdigit() else 0, is_dir


def _path_of(href: str) -> str:
    _, scheme, rest = href.partition("://")
    return "/" + rest.partition("/")[2] if scheme else href


def _is_name(name: str) -> bool:
    return (
        name not in ("", ".", "..")
        and "/" not in name
        and not _CONTROL.search(name)
        and len(name.encode(errors="surrogatepass")) <= _MAX_NAME_BYTES
    )
