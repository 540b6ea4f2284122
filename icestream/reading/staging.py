"""Staging of an evaluation's files: search, transfer to local disk, and comparison with the training files."""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from common.errors import BadInputError
from common.files.inputs import local_path, named_inputs
from common.files.remotes import Remotes
from common.plan import SlotCapacity, SourceFile, StagedFile
from common.redact import shown
from common.schema import EventSchema
from common.slow_progress import note
from icestream.reading.events import Report, StageFile, refuse
from icestream.reading.validation import local_files
from services.fetcher.staging.cache import Cache
from services.fetcher.staging.stage import NotStaged, Stage
from workloads.base.front import FileSettings


@contextmanager
def staging(
    schema: EventSchema,
    settings: FileSettings,
    remotes: Remotes,
    sources: Sequence[SourceFile],
    report: Report = refuse,
) -> Iterator[StageFile]:
    """Callback that brings files to local disk, where they stay until the end of the block; ``report`` gets bad ones.

    Local ones are used in place, remote ones are stored in `fetcher.cache_dir`, or in a temporary directory.
    """
    with tempfile.TemporaryDirectory(prefix="icestream-evaluate-") as folder:
        # The run's own cache directory may be on another machine: local files don't need one.
        has_remote = any(local_path(source.url) is None for source in sources)
        cache_dir = (has_remote and settings.cache_dir) or Path(folder) / "cache"
        with closing(Cache(cache_dir, Path(folder))) as cache:
            stage = Stage(cache, schema, settings.stream, SlotCapacity(schema, settings.stream), remotes.fetch)

            def bring(index: int, source: SourceFile) -> StagedFile:
                if local_path(source.url) is None:
                    note(f"{shown(source.url)}: {source.size_bytes / 2**20:,.1f} MiB")
                found = stage(index, source, None)
                if isinstance(found, NotStaged):
                    raise BadInputError(f"{found.reason}; try again later")
                if found.footer is None:
                    report(found.reason)
                return found

            try:
                yield bring
            finally:
                for source in sources:
                    if local_path(source.url) is None:
                        cache.drop(source)


def trained_on(sources: Sequence[SourceFile], trained_inputs: Sequence[str], remotes: Remotes) -> list[str]:
    """Files that are among the inputs of a run, as far as known here.

    No server is asked for a listing: a remote file is one of them if an input names it, its folder, or a glob that it
    matches.
    """
    inputs = [text.replace("{range}", "*") for text in named_inputs(trained_inputs)]
    local = set(local_files(inputs, remotes))
    found = []
    for source in sources:
        path = local_path(source.url)
        if path.resolve() in local if path else any(_names(text, source.url) for text in inputs):
            found.append(shown(source.url))
    return found


def _names(text: str, url: str) -> bool:
    return url == text or url.startswith(text.rstrip("/") + "/") or fnmatch.fnmatchcase(url, text)
