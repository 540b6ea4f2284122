"""Local copies of input files, for commands that read them one by one, outside of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from common.errors import BadInputError
from common.files.inputs import NOT_UTF8, local_path
from common.files.remotes import Remotes
from common.files.transfer import cache_path
from common.plan import SourceFile
from common.redact import shown


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
        copy = cache_path(Path(folder), source)
        click.echo(f"{shown(source.url)}: fetching {source.size_bytes / 2**20:,.1f} MiB", err=True)
        copy.parent.mkdir(parents=True)
        remotes.fetch(source, copy)
        yield copy
