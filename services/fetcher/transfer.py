"""One remote file to local disk, through fsspec: into a `.part` file, checked, then renamed."""

from __future__ import annotations

import errno
import hashlib
import re
from pathlib import Path, PurePosixPath

import fsspec
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from common.errors import BadInputError, TransientError
from common.redact import without_secrets
from services.fetcher.plan import SourceFile

_CHUNK_BYTES = 1 << 20
_ATTEMPTS = 4
PART_SUFFIX = ".part"


def cache_path(cache_dir: Path, source: SourceFile) -> Path:
    """Where a remote file is staged: a digest names it, so that no remote name can leave the cache directory."""
    digest = hashlib.blake2b(source.url.encode(), digest_size=16).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", PurePosixPath(without_secrets(source.url)).name)[-80:].lstrip(".")
    return cache_dir / digest[:2] / f"{digest}-{readable}"


class WrongSizeError(TransientError):
    """All bytes that the server had arrived, but not as many as the inventory says."""


@retry(
    retry=retry_if_exception_type(TransientError),
    stop=stop_after_attempt(_ATTEMPTS),
    wait=wait_random_exponential(multiplier=0.2, max=10),
    reraise=True,
)
def fetch(source: SourceFile, path: Path) -> None:
    """Stage the file at ``path``, or keep it if it is there in full.

    Raises BadInputError if it does not exist or has another size than the inventory says, TransientError if the
    remote side failed each time, OSError (ENOSPC) if the disk is full.
    """
    if path.exists() and path.stat().st_size == source.size_bytes:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(path.name + PART_SUFFIX)
    try:
        with fsspec.open(source.url, "rb") as remote, part.open("wb") as local:
            while chunk := remote.read(_CHUNK_BYTES):
                local.write(chunk)
    except Exception as error:  # each kind of remote raises errors of its own: aiohttp's are no OSError
        part.unlink(missing_ok=True)
        if is_gone(error):
            raise BadInputError("it does not exist any more") from None
        if _is_refused(error):
            raise BadInputError(f"the server refuses it: {' '.join(str(error).split())[:300]}") from None
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.filename = str(path)
            raise
        raise TransientError(f"could not be fetched: {' '.join(str(error).split())[:300]}") from error
    size_bytes = part.stat().st_size
    if size_bytes != source.size_bytes:
        part.unlink()
        raise WrongSizeError(f"{size_bytes} bytes arrived, the inventory says {source.size_bytes}")
    part.replace(path)


def _is_refused(error: Exception) -> bool:
    """True if asking again won't help: a client error that is no time-out and no "too many requests"."""
    status = getattr(error.__cause__ or error, "status", 0) or 0
    return isinstance(error, PermissionError) or (400 <= status < 500 and status not in (408, 429))


def is_gone(error: Exception) -> bool:
    """True if a remote side said that a file does not exist.

    fsspec's http raises FileNotFoundError for whatever goes wrong, a server that can't be reached included; its cause
    tells more.
    """
    cause = error.__cause__ or error
    return isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) in (404, 410)


def remove_parts(cache_dir: Path) -> None:
    """Delete what interrupted transfers of a dead fetcher left."""
    for part in cache_dir.rglob(f"*{PART_SUFFIX}"):
        part.unlink()
