"""Stages one file: brings it to local disk if it is remote, and reads its footer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from common.config import StreamConfig
from common.errors import IcestreamError, TransientError
from common.redact import without_secrets
from common.schema import Workload
from services.fetcher.bad_file import BadFileError
from services.fetcher.cache import Cache
from services.fetcher.inputs import local_path
from services.fetcher.plan import Footer, SlotCapacity, SourceFile, StagedFile
from services.fetcher.transfer import WrongSizeError, fetch


@dataclass(frozen=True)
class NotStaged:
    """This time the file could not be staged; try again later."""

    file: int
    reason: str


@dataclass(frozen=True)
class Stage:
    """Everything that staging a file depends on. Called in the fetcher's worker threads."""

    cache: Cache
    workload: Workload
    stream: StreamConfig
    capacity: SlotCapacity
    fetch: Callable[[SourceFile, Path], None] = fetch
    """Writes a remote file at a path: see `services.fetcher.cache.Fetch`."""
    inspect: Callable[[Path], Footer] | None = None
    """Reads a footer in another process: see `services.fetcher.inspection`. None: in this one."""

    def __call__(self, file: int, source: SourceFile, footer: Footer | None) -> StagedFile | NotStaged:
        """The staged file, with ``footer`` if it is known from before; a bad one comes back with the reason.

        NotStaged is for what may pass: it says nothing about the file.
        """
        path = self.path(source)
        try:
            self._bring(source, path)
            footer = footer or self._inspect(path)
        except BadFileError as error:
            bad = StagedFile(file, str(path), None, reason=_reason(source, error), bad_rows=error.rows)
        except IcestreamError as error:
            if isinstance(error, TransientError) and not isinstance(error, WrongSizeError):
                return NotStaged(file, _reason(source, error))
            bad = StagedFile(file, str(path), None, reason=_reason(source, error))
        else:
            remote = "" if local_path(source.url) else without_secrets(source.url)
            return StagedFile(file, str(path), footer, remote)
        # The plan was made with this footer: its units stay, and the decoder quarantines their rows.
        return StagedFile(file, "", footer, without_secrets(source.url)) if footer else bad

    def path(self, source: SourceFile) -> Path:
        """Where the file is, or will be, on local disk."""
        return local_path(source.url) or self.cache.path(source)

    def _inspect(self, path: Path) -> Footer:
        if self.inspect is not None:
            return self.inspect(path)
        from services.fetcher.footers import read_footer  # Arrow: 60 MiB that a fetcher doesn't need

        return read_footer(path, self.workload, self.stream, self.capacity)

    def _bring(self, source: SourceFile, path: Path) -> None:
        if local_path(source.url) is None:
            self.cache.get(source, partial(self.fetch, source))
            return
        try:
            size_bytes = path.stat().st_size
        except OSError as error:
            raise BadFileError(f"it can't be read any more: {error.strerror}") from None
        if size_bytes != source.size_bytes:
            raise BadFileError(f"it has {size_bytes} bytes, the frozen inventory says {source.size_bytes}")


def _reason(source: SourceFile, error: IcestreamError) -> str:
    """Why a file is bad. It is told in logs, summaries and checkpoints: no secret may be in it."""
    return without_secrets(f"{source.url}: {error}")
