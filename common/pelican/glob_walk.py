"""Matching of a glob against a tree of names, one directory at a time. Pure.

A directory carries a set of positions in the pattern, so that it is listed once even if several ways match it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import lru_cache

from common.hidden_names import HIDDEN

_ANY_DEPTH = "**"
_MAGIC = re.compile(r"[*?[]")

Places = frozenset[int]
"""Segments of the pattern that may match the next name."""


def has_magic(text: str) -> bool:
    """True if the text is a pattern."""
    return _MAGIC.search(text) is not None


class GlobWalk:
    """Pattern such as `a/b/*/c?.parquet`: ``root`` is the part before its first wildcard.

    `*`, `?` and `[…]` match inside a name, `**` any number of directories; none matches a leading dot or underscore.
    """

    def __init__(self, pattern: str) -> None:
        segments = pattern.strip("/").split("/")
        first = next((i for i, segment in enumerate(segments) if has_magic(segment)), len(segments))
        self.root = "/" + "/".join(segments[:first])
        self._segments = segments[first:]
        self.start = self._closed({0})

    def into(self, places: Places, name: str) -> Places:
        """Places in the directory ``name``; empty if nothing below it can match."""
        return frozenset(place for place in self._after(places, name) if place < len(self._segments))

    def takes(self, places: Places, name: str) -> bool:
        """True if the file ``name`` matches: with the last segment, not with one that a `**` follows."""
        last = len(self._segments) - 1
        if last not in places:
            return False
        segment = self._segments[last]
        return _matches(segment, name) if segment != _ANY_DEPTH else not name.startswith(HIDDEN)

    def leaves_out(self, places: Places, name: str) -> bool:
        """True if ``name`` does not match for its first character alone."""
        last = len(self._segments) - 1
        if last not in places or not name.startswith(HIDDEN) or self.takes(places, name):
            return False
        return self._segments[last] == _ANY_DEPTH or _compiled(self._segments[last]).match(name) is not None

    def hides(self, path: str) -> bool:
        """True if a whole path, which another matcher has found, is left out for a hidden name below the root."""
        *folders, name = path.strip("/").removeprefix(self.root.strip("/")).strip("/").split("/")
        if not any(part.startswith(HIDDEN) for part in (*folders, name)):
            return False
        places = self.start
        for folder in folders:
            places = self.into(places, folder)
        return not self.takes(places, name)

    def _after(self, places: Places, name: str) -> Places:
        following = set()
        for place in places:
            if place == len(self._segments):
                continue  # this place ended with a `**`
            segment = self._segments[place]
            if segment == _ANY_DEPTH:
                following |= {place} if not name.startswith(HIDDEN) else set()
            elif _matches(segment, name):
                following.add(place + 1)
        return self._closed(following)

    def _closed(self, places: Iterable[int]) -> Places:
        """Places, with those after a `**`, which may also match no directory at all."""
        closed = set(places)
        for place in sorted(closed):
            while place < len(self._segments) and self._segments[place] == _ANY_DEPTH:
                place += 1
                closed.add(place)
        return frozenset(closed)


def _matches(segment: str, name: str) -> bool:
    if not has_magic(segment):
        return segment == name
    if name.startswith(HIDDEN) and segment[0] != name[0]:
        return False
    return _compiled(segment).match(name) is not None


@lru_cache(maxsize=256)
def _compiled(segment: str) -> re.Pattern[str]:
    return re.compile(translate(segment))
