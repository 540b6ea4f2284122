"""Input files as local ones, for commands that look at them one by one, outside of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from common.redact import without_secrets
from common.schema import Workload
from services.config import load_config
from services.fetcher.inputs import local_path
from services.fetcher.plan import SourceFile
from services.fetcher.transfer import cache_path, fetch


@contextmanager
def local_file(source: SourceFile) -> Iterator[Path]:
    """A local file itself, or a remote one's copy in a temporary directory. Raises BadInputError, TransientError."""
    path = local_path(source.url)
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="icestream-") as folder:
        copy = cache_path(Path(folder), source)
        click.echo(f"{without_secrets(source.url)}: fetching {source.size_bytes / 2**20:,.1f} MiB", err=True)
        fetch(source, copy)
        yield copy


def workload_of(toml: Path | None, assignments: Sequence[str]) -> Workload:
    """The workload as the settings describe its files. No run directory takes part. Raises BadInputError."""
    with tempfile.TemporaryDirectory(prefix="icestream-") as nothing:
        return load_config(Path(nothing), toml=toml, assignments=assignments).stored_workload()
