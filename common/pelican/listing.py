"""Files below a path or matching a glob: one listing request for each directory, none for a file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from common import hidden_names
from common.pelican.client import Federation
from common.pelican.errors import NotFoundError, UnavailableError
from common.pelican.glob_walk import GlobWalk, Places, has_magic
from common.pelican.url import PelicanUrl
from common.pelican.webdav import Listing

logger = logging.getLogger(__name__)

_MAX_DEPTH = 64


@dataclass(frozen=True)
class ListingProgress:
    """Progress of an expansion."""

    directories: int
    files: int


OnProgress = Callable[[ListingProgress], None]


async def expand(
    federation: Federation, path: str, suffixes: Collection[str], on_progress: OnProgress = lambda progress: None
) -> list[tuple[str, int]]:
    """Path and size of every file, sorted: of a glob, of a file itself, or of a directory's files with ``suffixes``.

    Raises NotFoundError if there is none, and a listing's errors: the result is complete or an error, never a part.
    """
    hidden: list[str] = []
    if has_magic(path):
        walk = GlobWalk(path)
        found = await _walk(
            federation, walk, walk.root, await federation.list_directory(walk.root), on_progress, hidden
        )
    else:
        listing = await federation.list_directory(path)
        if listing.itself is not None and not listing.itself.is_dir:
            return [(path, listing.itself.size_bytes)]
        below = await _walk(federation, GlobWalk("**"), path, listing, on_progress, hidden)
        found = [(name, size) for name, size in below if name.endswith(tuple(suffixes))]
    if left_out := [name for name in hidden if name.endswith((*suffixes, "/"))]:
        logger.warning("%s", hidden_names.told(str(PelicanUrl(federation.host, path)), left_out))
    if not found:
        looked_for = "no file matches" if has_magic(path) else f"no file with one of {' '.join(suffixes)} below it"
        raise NotFoundError(f"{PelicanUrl(federation.host, path)}: {looked_for}")
    return sorted(found)


async def _walk(
    federation: Federation, walk: GlobWalk, root: str, listing: Listing, on_progress: OnProgress, hidden: list[str]
) -> list[tuple[str, int]]:
    """Path and size of every matching file, level by level, with several directories listed at a time.

    What is left out for its hidden name is appended to ``hidden``, a directory with a slash at its end.
    """
    found: list[tuple[str, int]] = []
    num_directories = 0
    limit = asyncio.Semaphore(federation.config.list_concurrency)

    async def list_one(path: str) -> Listing:
        async with limit:
            try:
                return await federation.list_directory(path)
            except NotFoundError as error:  # it was in its parent's listing
                raise UnavailableError(f"{error}; it was there a moment ago") from None

    level: list[tuple[str, Places, Listing]] = [(root.rstrip("/"), walk.start, listing)]
    for _ in range(_MAX_DEPTH):
        below: list[tuple[str, Places]] = []
        for path, places, entries in level:
            num_directories += 1
            for entry in entries.entries:
                if not entry.is_dir and walk.takes(places, entry.name):
                    found.append((f"{path}/{entry.name}", entry.size_bytes))
                elif entry.is_dir and (following := walk.into(places, entry.name)):
                    below.append((f"{path}/{entry.name}", following))
                elif walk.leaves_out(places, entry.name):
                    hidden.append(f"{path}/{entry.name}" + "/" * entry.is_dir)
        on_progress(ListingProgress(num_directories, len(found)))
        if not below:
            return found
        tasks = [asyncio.ensure_future(list_one(path)) for path, _ in below]
        try:
            listings = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        level = [(path, places, one) for (path, places), one in zip(below, listings, strict=True)]
    raise UnavailableError(f"{PelicanUrl(federation.host, root)}: directories more than {_MAX_DEPTH} deep")
