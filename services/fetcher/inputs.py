"""Expands what the user names (paths, directories, globs, URLs) into a sorted list of source files with sizes."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec

from common.errors import BadInputError
from services.fetcher.plan import SourceFile
from services.fetcher.transfer import is_gone

SUFFIXES = (".parquet", ".h5", ".hdf5")
"""What is taken from a directory. What a file really is, its content tells."""


def expand(inputs: Sequence[str]) -> list[SourceFile]:
    """Every file once, in the order of the inputs, sorted inside each. Raises BadInputError naming the input."""
    files: dict[str, SourceFile] = {}
    for text in inputs:
        for file in sorted(_expand_one(text), key=lambda file: file.url):
            files.setdefault(file.url, file)
    if not files:
        raise BadInputError("no input: name files, directories, globs or URLs with -i")
    return list(files.values())


def local_path(url: str) -> Path | None:
    """The path of a local file, which is used in place; None for a remote URL."""
    return None if "://" in url else Path(url)


def _expand_one(text: str) -> Iterator[SourceFile]:
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return _expand_remote(text) if "://" in text else _expand_local(text)


def _expand_local(text: str) -> Iterator[SourceFile]:
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES) and file.is_file())
        if not found:
            raise BadInputError(f"{text}: the directory holds no file with one of {' '.join(SUFFIXES)}")
    elif path.exists():
        found = [path]
    elif glob.has_magic(text):
        # pathlib can't expand an absolute glob.
        found = [Path(name) for name in glob.glob(str(path), recursive=True) if not Path(name).is_dir()]  # noqa: PTH207
        if not found:
            raise BadInputError(f"{text}: no file matches this glob (quote it, so that the shell leaves it alone)")
    else:
        raise BadInputError(f"{text}: no such file or directory")
    for file in found:
        yield SourceFile(str(file), file.stat().st_size)


def _expand_remote(url: str) -> Iterator[SourceFile]:
    try:
        fs, path = fsspec.core.url_to_fs(url)
        if glob.has_magic(_without_query(path)):
            infos = list(fs.glob(path, detail=True).values())
        elif not _without_query(path).endswith(SUFFIXES) and fs.isdir(path):  # isdir would download a file over HTTP
            infos = [info for name, info in fs.find(path, detail=True).items() if name.endswith(SUFFIXES)]
        else:
            infos = [fs.info(path)]
    except Exception as error:  # noqa: BLE001  each kind of remote raises errors of its own: aiohttp's are no OSError
        if is_gone(error):
            raise BadInputError(f"{url}: no such file or directory") from None
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise BadInputError(f"{url}: can't be listed: {reason}") from None
    files = [info for info in infos if info.get("type") != "directory"]
    if not files:
        raise BadInputError(f"{url}: no file matches")
    for info in files:
        yield SourceFile(fs.unstrip_protocol(info["name"]), _size_bytes(url, info))


def _without_query(path: str) -> str:
    """The `?` of an HTTP address begins its query; anywhere else it is a glob's."""
    return path.partition("?")[0] if path.startswith(("http://", "https://")) else path


def _size_bytes(url: str, info: dict[str, Any]) -> int:
    size = info.get("size")
    if size is None:
        raise BadInputError(f"{url}: the server doesn't tell the size of {info['name']}, which the plan needs")
    return int(size)
