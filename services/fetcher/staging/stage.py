"""Staging of one file: brings it to local disk if it is remote, and reads its footer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from common.config import StreamConfig
from common.errors import BadInputError, IcestreamError, TransientError
from common.files.bad_file import BadFileError
from common.files.file_kind import check_regular
from common.files.inputs import NOT_UTF8, local_path
from common.files.transfer import WrongSizeError, fetch
from common.input_errors import MachineError, machine_errno, one_line, raise_if_machine
from common.own_faults import OwnFaults
from common.plan import Footer, SlotCapacity, SourceFile, StagedFile
from common.redact import shown
from common.schema import EventSchema
from services.fetcher.staging.cache import Cache


@dataclass(frozen=True)
class NotStaged:
    """Outcome: the file could not be staged this time; try again later."""

    file: int
    reason: str


@dataclass(frozen=True)
class Stage:
    """Staging function with its settings. Called in the fetcher's worker threads."""

    cache: Cache
    workload: EventSchema
    stream: StreamConfig
    capacity: SlotCapacity
    fetch: Callable[[SourceFile, Path], None] = fetch
    """Function that writes a remote file at a path: see `services.fetcher.staging.cache.Fetch`."""
    inspect: Callable[[Path], Footer] | None = None
    """Reader of a footer in another process: see `services.fetcher.staging.inspection`. None: in this one."""
    own_faults: OwnFaults = field(default_factory=OwnFaults)

    def __call__(self, file: int, source: SourceFile, footer: Footer | None) -> StagedFile | NotStaged:
        """Staged file, with ``footer`` if it is known from before; a bad file is returned with the reason.

        NotStaged stands for a temporary failure, which does not concern the file.
        """
        path = self.path(source)
        is_local = local_path(source.url) is not None
        try:
            self._bring(source, path)
            footer = footer or self._inspect(path)
        except IcestreamError as error:
            if self._may_pass(error, path, is_local):
                return NotStaged(file, _reason(source, error))
            if footer:  # The plan was made with this footer: the file's units stay, the decoder quarantines their rows.
                return StagedFile(file, "", footer, shown(source.url))
            rows = error.rows if isinstance(error, BadFileError) else 0
            return StagedFile(file, str(path), None, reason=_reason(source, error), bad_rows=rows)
        if is_local:
            self.own_faults.worked(path)
        return StagedFile(file, str(path), footer, "" if is_local else shown(source.url))

    def path(self, source: SourceFile) -> Path:
        """Path of the file on local disk, present or future."""
        return local_path(source.url) or self.cache.path(source)

    def _inspect(self, path: Path) -> Footer:
        if self.inspect is not None:
            return self.inspect(path)
        from common.files.footers import read_footer  # Arrow takes 60 MiB that a fetcher doesn't need

        return read_footer(path, self.workload, self.stream, self.capacity)

    def _bring(self, source: SourceFile, path: Path) -> None:
        if source.checksum == NOT_UTF8:
            raise BadFileError("its name, shown here with \\u…, is not UTF-8: rename it")
        if local_path(source.url) is None:
            try:
                self.cache.get(source, partial(self.fetch, source))
            except (OSError, MemoryError) as error:
                raise MachineError(f"the cache: {one_line(error)}", machine_errno(error)) from None
            return
        try:
            status = path.stat()
            check_regular(status)
        except (OSError, MemoryError, ValueError) as error:  # ValueError: a path with a zero byte
            raise_if_machine(error, path)
            raise BadFileError(one_line(error)) from None
        except BadInputError as error:
            raise BadFileError(str(error)) from None
        if status.st_size != source.size_bytes:
            raise BadFileError(f"it has {status.st_size} bytes, the frozen inventory says {source.size_bytes}")

    def _may_pass(self, error: IcestreamError, path: Path, is_local: bool) -> bool:
        if isinstance(error, MachineError):
            return not is_local or not self.own_faults.is_own(path, error.number)
        return isinstance(error, TransientError) and not isinstance(error, WrongSizeError)


def _reason(source: SourceFile, error: IcestreamError) -> str:
    """Reason that a file is bad, for logs, summaries and checkpoints."""
    text = str(error)
    return shown(text if text.startswith(f"{source.url}: ") else f"{source.url}: {text}")
