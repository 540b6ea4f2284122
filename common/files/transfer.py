"""Transfer of a remote file to local disk, through fsspec: for every scheme but a federation's."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import fsspec
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from common.errors import BadInputError, TransientError
from common.files.local_name import name_of
from common.files.redirects import http_options
from common.plan import SourceFile

_CHUNK_BYTES = 1 << 20
_ATTEMPTS = 4


def cache_path(cache_dir: Path, source: SourceFile) -> Path:
    """Path of a remote file's copy in a directory of temporary ones: no remote name can leave it."""
    name = name_of(source)
    return cache_dir / name[:2] / name


class WrongSizeError(TransientError):
    """Transfer complete, but with another size than the inventory's."""


@retry(
    retry=retry_if_exception_type(TransientError),
    stop=stop_after_attempt(_ATTEMPTS),
    wait=wait_random_exponential(multiplier=0.2, max=10),
    reraise=True,
)
def fetch(source: SourceFile, path: Path) -> None:
    """Write the file at ``path``, always from its beginning; nothing is left there if that fails.

    Raises BadInputError if it does not exist or has another size than in the inventory, TransientError if the
    remote side failed each time, OSError (ENOSPC) if the disk is full.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with path.open("wb") as local:
            try:
                _copy(source, local)
            except _LocalError as error:
                raise error.reason from None
            size_bytes = local.tell()
        if size_bytes != source.size_bytes:
            raise WrongSizeError(f"{size_bytes} bytes arrived, the inventory says {source.size_bytes}")
    except BaseException:
        path.unlink(missing_ok=True)
        raise


class _LocalError(Exception):
    """Error of the local side: ENOSPC is no fault of the server."""

    def __init__(self, reason: OSError, path: str) -> None:
        super().__init__()
        reason.filename = reason.filename or path
        self.reason = reason


def _copy(source: SourceFile, local: BinaryIO) -> None:
    try:
        # As a stream: fsspec takes a range of a file into memory, however long the server's answer is.
        options = http_options(source.url)
        options |= {"block_size": 0} if options else {}
        with fsspec.open(source.url, "rb", **options) as remote:
            while chunk := remote.read(_CHUNK_BYTES):
                if local.tell() + len(chunk) > source.size_bytes:
                    raise WrongSizeError(f"more bytes arrive than the inventory's {source.size_bytes}")
                try:
                    local.write(chunk)
                    local.flush()
                except OSError as error:
                    raise _LocalError(error, local.name) from None
    except (_LocalError, WrongSizeError):
        raise
    except Exception as error:  # each kind of remote raises its own errors: aiohttp's are no OSError
        if isinstance(error.__cause__, BadInputError):  # a redirect that is not followed
            raise error.__cause__ from None
        if is_gone(error):
            raise BadInputError("it does not exist any more") from None
        if _is_refused(error):
            raise BadInputError(f"the server refuses it: {' '.join(str(error).split())[:300]}") from None
        raise TransientError(f"could not be fetched: {' '.join(str(error).split())[:300]}") from error


def _is_refused(error: Exception) -> bool:
    """True if a retry won't help: a client error other than a time-out or "too many requests"."""
    status = getattr(error.__cause__ or error, "status", 0) or 0
    return isinstance(error, PermissionError) or (400 <= status < 500 and status not in (408, 429))


def is_gone(error: Exception) -> bool:
    """True if a remote side reported that a file does not exist.

    fsspec's http raises FileNotFoundError for any failure, an unreachable server included; the cause is in
    ``__cause__``.
    """
    cause = error.__cause__ or error
    return isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) in (404, 410)
