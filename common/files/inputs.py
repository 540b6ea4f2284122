"""Expansion of inputs (paths, directories, globs, URLs) into a sorted list of source files with sizes."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import fsspec

from common import text as hidden_names
from common.errors import BadInputError, missing_extra
from common.files.local import SUFFIXES, each_match, files_below, list_entries, named_inputs, numbered, status_of
from common.files.remotes import Remotes, http_options, is_gone, name_of
from common.paths import check_path, user_path
from common.pelican.answers import MAX_SIZE_BYTES, NotFoundError, is_checksum, number
from common.pelican.url import GlobWalk, is_pelican
from common.plan import SourceFile
from common.text import shown

logger = logging.getLogger(__name__)

NOT_UTF8 = "name=not-utf-8"
"""Placeholder for the checksum of a file with an unwritable name: its URL is only shown to the user."""


Identity = tuple[int, int]
"""Device and inode of a local file, by which it is known under any name."""


class NothingFound(BadInputError):
    """Error for an input that doesn't exist or matches no file."""


def expand(inputs: Sequence[str], remotes: Remotes) -> list[SourceFile]:
    """Files of all inputs, each once, in the order of the inputs, sorted inside each.

    A local file with several names, by links or by other spellings of its path, keeps the first.

    Raises BadInputError naming the input (NothingFound if the only fault is a missing file), and TransientError.
    """
    if not inputs:
        raise BadInputError("no input: name files, directories, globs or URLs with -i")
    files: dict[str, SourceFile] = {}
    names: dict[Identity, str] = {}
    again: dict[str, str] = {}
    for text in numbered(inputs):
        identities: dict[str, Identity] = {}
        for file in sorted(map(_writable, _expand_one(text, remotes, identities)), key=lambda file: file.url):
            identity = identities.get(file.url)
            name = file.url if identity is None else names.setdefault(identity, file.url)
            if name == file.url:
                files.setdefault(file.url, file)
            else:
                again[file.url] = name
    if again:
        name, first = next(iter(again.items()))
        logger.warning(
            "%d more names of files that are among the inputs already, by links or other paths: each file is read once;"
            " the first is %s, which is %s",
            len(again),
            shown(name),
            shown(first),
        )
    if sum(file.size_bytes for file in files.values()) > MAX_SIZE_BYTES:
        raise BadInputError(
            f"{', '.join(inputs)[:500]}: files of more than {MAX_SIZE_BYTES} bytes in all can't be true"
        )
    return list(files.values())


def _writable(file: SourceFile) -> SourceFile:
    """Form of the file that the ledger, messages and digests can store."""
    try:
        file.url.encode()
    except UnicodeEncodeError:
        return SourceFile(file.url.encode("utf-8", "backslashreplace").decode(), file.size_bytes, NOT_UTF8)
    return file


def local_path(url: str) -> Path | None:
    """Path of a local file, which is used in place; None for a remote URL."""
    return None if "://" in url else Path(url)


def local_files(inputs: Sequence[str], remotes: Remotes) -> Iterator[Path]:
    """Local files of a run's inputs, as far as visible here."""
    for text in named_inputs(inputs):
        if local_path(text.removeprefix("file://")) is not None:
            with contextlib.suppress(NothingFound):  # ranges, or the fetcher is on another machine
                yield from [Path(file.url).resolve() for file in expand([text], remotes)]


def _expand_one(text: str, remotes: Remotes, identities: dict[str, Identity]) -> Iterable[SourceFile]:
    """Files of one input. ``identities`` grows by those of local files, by their URL."""
    if text.startswith("@"):
        return _expand_list(user_path(text.removeprefix("@")), remotes, identities)
    check_path(text)
    if is_pelican(text):
        try:
            return remotes.expand_pelican(text)
        except NotFoundError as error:
            raise NothingFound(str(error)) from None
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return _expand_remote(text) if "://" in text else _expand_local(text, identities)


def _expand_list(path: Path, remotes: Remotes, identities: dict[str, Identity]) -> Iterator[SourceFile]:
    """Files of a list file: in each line an input, or URL, size in bytes and checksum with tabs between."""
    try:
        entries = list(list_entries(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"@{path}: can't be read ({error})") from None
    for line_number, (url, *rest) in entries:
        if url.startswith("@"):
            raise BadInputError(f"@{path}, line {line_number}: a list in a list")
        try:
            yield from [_listed(url, *rest)] if rest else _expand_one(url, remotes, identities)
        except BadInputError as error:
            kind = NothingFound if isinstance(error, NothingFound) else BadInputError
            raise kind(f"@{path}, line {line_number}: {error}") from None


def _listed(url: str, size: str, checksum: str = "", *more: str) -> SourceFile:
    """File of a list's line that has more than an input."""
    check_path(url)
    size_bytes = number(size)
    if size_bytes is None or more or (checksum and not is_checksum(checksum)):
        raise BadInputError(
            "expected an input, or URL, size in bytes and (for example) adler32=0123abcd, with tabs between"
        )
    return SourceFile(url, size_bytes, checksum)


def require_local(text: str) -> None:
    """Raise NothingFound if a local input has no file; the first one is enough. Raises TransientError."""
    if next(_local_files(text.removeprefix("file://")), None) is None:
        raise _nothing_found(text)


def _local_files(text: str, hidden: list[Path] | None = None) -> Iterator[Path]:
    path = user_path(text).absolute()
    status = status_of(path)
    if status is not None:
        yield from files_below(path, hidden) if stat.S_ISDIR(status.st_mode) else (path,)
    elif glob.has_magic(text):
        yield from each_match(path, hidden)


def _nothing_found(text: str) -> NothingFound:
    """Error for a local input without a file."""
    path = user_path(text.removeprefix("file://")).absolute()
    if status_of(path) is not None:
        return NothingFound(f"{text}: the directory holds no file with one of {' '.join(SUFFIXES)}")
    if not glob.has_magic(text):
        return NothingFound(f"{text}: no such file or directory")
    folder = next(folder for folder in path.parents if not glob.has_magic(str(folder)))
    if not folder.is_dir():
        return NothingFound(f"{text}: no file matches this glob (folder {folder} does not exist)")
    hint = f"; for the files below it: {folder}" if next(files_below(folder), None) else ""
    return NothingFound(f"{text}: no file matches this glob (folder {folder} exists{hint})")


def _expand_local(text: str, identities: dict[str, Identity]) -> list[SourceFile]:
    hidden: list[Path] = []
    found = sorted(_local_files(text, hidden))
    if hidden:
        logger.warning("%s", hidden_names.told(text, list(map(str, hidden))))
    if not found:
        raise _nothing_found(text)
    files = []
    for file in found:  # first: the machine may fail here
        status = status_of(file)
        if status is not None and stat.S_ISREG(status.st_mode):
            identities[str(file)] = status.st_dev, status.st_ino
            files.append(SourceFile(str(file), status.st_size))
        else:
            files.append(SourceFile(str(file), 0))
    if not any(os.access(file, os.R_OK) for file in found):
        raise BadInputError(f"{text}: none of its {len(found)} files can be read; the first is {found[0]}")
    return files


def _expand_remote(url: str) -> Iterator[SourceFile]:
    walk: GlobWalk | None = None
    try:
        fs, path = fsspec.core.url_to_fs(url, **http_options(url))
        if glob.has_magic(_without_query(path)):
            walk = GlobWalk(_without_query(path))
            infos = list(fs.glob(path, detail=True).values())
        elif not _without_query(path).endswith(SUFFIXES) and fs.isdir(path):  # isdir would download a file over HTTP
            walk = GlobWalk(f"{_without_query(path).rstrip('/')}/**")
            infos = [info for name, info in fs.find(path, detail=True).items() if name.endswith(SUFFIXES)]
        else:
            infos = [fs.info(path)]
    except ImportError as error:
        if url.startswith(("s3://", "s3a://")):
            raise missing_extra("S3 input", "s3") from None
        raise BadInputError(f"{url}: needs another package: {error}") from None
    except Exception as error:  # noqa: BLE001  each kind of remote raises its own errors: aiohttp's are no OSError
        if is_gone(error):
            raise NothingFound(f"{url}: no such file or directory") from None
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise BadInputError(f"{url}: can't be listed: {reason}") from None
    files = [info for info in infos if info.get("type") != "directory"]
    if walk is not None:
        files = _without_hidden(url, files, walk)
    if not files:
        raise NothingFound(f"{url}: no file matches")
    for info in files:
        size_bytes = number(str(info.get("size")))  # fsspec's clients pass on the server's value unchecked
        if size_bytes is None:
            raise BadInputError(f"{url}: the server doesn't report the size of {info['name']}, which the plan needs")
        yield SourceFile(fs.unstrip_protocol(info["name"]), size_bytes)


def _without_hidden(url: str, files: list[dict[str, Any]], walk: GlobWalk) -> list[dict[str, Any]]:
    """Return the files without those that fsspec matches and a local glob would not."""
    hidden = {info["name"]: walk.hides(_without_query(info["name"])) for info in files}
    if left_out := [
        name for name, is_hidden in hidden.items() if is_hidden and _without_query(name).endswith(SUFFIXES)
    ]:
        logger.warning("%s", hidden_names.told(url, left_out))
    return [info for info in files if not hidden[info["name"]]]


def _without_query(path: str) -> str:
    """Path without the query of an HTTP address; elsewhere `?` belongs to a glob."""
    return path.partition("?")[0] if path.startswith(("http://", "https://")) else path


@contextmanager
def local_file(source: SourceFile, remotes: Remotes) -> Iterator[Path]:
    """Path of a local file, or of a remote one's temporary copy. Raises BadInputError, TransientError."""
    path = local_path(source.url)
    if path is not None:
        if source.checksum == NOT_UTF8:
            raise BadInputError(f"{shown(source.url)}: its name, shown here with \\u…, is not UTF-8: rename it")
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="icestream-") as folder:
        copy = Path(folder) / name_of(source)
        click.echo(f"{shown(source.url)}: fetching {source.size_bytes / 2**20:,.1f} MiB", err=True)
        remotes.fetch(source, copy)
        yield copy
