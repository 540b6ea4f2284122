"""Front door for a workload's verbs: settings and files, without a run. Imports no torch.

Verbs are click commands with `@click.pass_obj`: their first argument is a Front.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common.config import SourceConfig, StreamConfig
from common.files.remote_access import RemoteAccess
from common.held_out import Which
from common.messages import Tally
from common.schema import EventSchema
from common.unit_arrays import UnitArrays


@dataclass(frozen=True)
class FileSettings:
    """Settings for reading some files."""

    inputs: tuple[str, ...]
    """Files, directories, globs or URLs."""
    source: SourceConfig
    stream: StreamConfig
    access: RemoteAccess
    cache_dir: Path | None
    """Directory for copies of remote files; None: a temporary one."""


@dataclass(frozen=True)
class FileEvents:
    """A sample of the events of some files."""

    arrays: UnitArrays
    paths: Mapping[int, Path]
    """Local copy of each file by its number in the column `source_file`."""
    tallies: Sequence[Tally]
    """Counts of rows read, left out and dropped; to be summed."""
    num_files: int
    """Files that were read."""
    num_sources: int
    """Files that the inputs name."""
    trained_on: Sequence[str]
    """Names of the files whose events the model was trained on, without secrets."""
    which: Which = "all"
    """Choice of the events by the run's `stream.held_out`."""
    left_out: Sequence[str] = ()
    """Names and faults of the files and row groups that can't be used."""


@dataclass(frozen=True)
class OrderedUnit:
    """Consecutive events of one file. The arrays are valid until the next unit is taken."""

    arrays: UnitArrays
    tally: Tally
    """Counts of its rows: read, left out and dropped."""
    file: str
    """Name of the file, without secrets."""
    done: float
    """Part of the files that is done with this unit, 0 to 1; each file counts alike."""


class Front(Protocol):
    """Services of the front door that a verb may use."""

    def file_settings(
        self, inputs: Sequence[str], *, toml: Path | None, assignments: Sequence[str], config_json: str = ""
    ) -> FileSettings:
        """Settings for reading ``inputs``.

        Later wins: defaults, the configuration ``config_json`` of a run, the TOML file, the environment, the
        assignments `key=value`. Raises BadInputError that names the key.
        """

    def read_events(
        self,
        schema: EventSchema,
        settings: FileSettings,
        *,
        events: int,
        seed: int,
        trained_inputs: Sequence[str],
        held_out: float = 0.0,
        which: Which | None = None,
    ) -> AbstractContextManager[FileEvents]:
        """Sample of up to ``events`` events (0: all) from all of the files, the same for the same seed.

        ``schema`` is as `settings.source` stores it; ``trained_inputs`` are the inputs of the run that trained a model.
        ``held_out`` is that run's `stream.held_out`, ``which`` the choice by it; None: of files that it was trained on
        the held out events only, which it has never seen, of other files all.
        What is bad is left out, as in a run, and named. Copies of remote files are deleted at the end of the block.
        Raises BadInputError without any event.
        """

    def each_unit(self, schema: EventSchema, settings: FileSettings) -> AbstractContextManager[Iterator[OrderedUnit]]:
        """All events of all files, in the files' order and in their order inside a file, a unit at a time.

        Memory is bounded by `settings.stream`, whose shuffling is not used. One copy of a remote file is
        kept at a time. The iterator raises BadInputError that names the file.
        """
