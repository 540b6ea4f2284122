"""Primaries of all files of some inputs, local and remote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from common.errors import BadInputError
from common.files.inputs import expand, local_path
from common.files.local_copy import local_file
from common.files.remotes import Remotes
from common.redact import shown
from workloads.base.front import FileSettings
from workloads.muons.generation.primaries import Primaries, WantedCounts, num_rows, read_primaries
from workloads.muons.workload import WORKLOAD


class FilePrimaries:
    """Rows of all inputs. Their number is known once the last file was opened."""

    def __init__(
        self, settings: FileSettings, remotes: Remotes, wanted: WantedCounts | None, out: Path | None = None
    ) -> None:
        """``out``: file or folder that will be written. Raises BadInputError if an input lies in it."""
        self._workload = WORKLOAD.schema.stored_as(settings.source)
        self._remotes = remotes
        self._wanted = wanted
        self._sources = expand(settings.inputs, remotes)
        local = [path for source in self._sources if (path := local_path(source.url)) is not None]
        for path in local if out else ():
            assert out is not None
            if out.resolve() in (path.resolve(), *path.resolve().parents):
                raise BadInputError(f"{path} is what {out} would overwrite: choose another name")
        self.num_rows = sum(num_rows(path, str(path)) for path in local)
        """Number of rows in local files, as far as footers contain it."""

    def primaries(self) -> Iterator[Primaries]:
        """Rows of each file in order. Raises BadInputError."""
        for number, source in enumerate(self._sources):
            name = shown(source.url)
            with local_file(source, self._remotes) as path:
                yield from read_primaries(path, name, number, self._workload, self._wanted)
