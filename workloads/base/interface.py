"""A workload (what the stream carries, its models, verbs and importers), and the front door for its verbs.

Light to import, since `icestream --help` lists all verbs. What is heavy is behind lazy functions: a function without
arguments that imports an object in its body and returns it (`lazy` makes one). Verbs are click commands with
`@click.pass_obj`: their first argument is a Front, which gives settings and files without a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import click

    from common.config import ConfigBranch, SourceConfig, StreamConfig
    from common.files.remotes import RemoteAccess
    from common.files.rows import RaggedRows
    from common.messages import Tally
    from common.plan import Which
    from common.schema import EventSchema, UnitArrays
    from workloads.base.training import Training

Section = Literal["Run", "Look", "Data", "Results", "Machines"]
"""Section of `icestream --help`."""


class Verb(NamedTuple):
    """A click command, its line in the list of commands, and the section of that line."""

    command: Callable[[], click.Command]
    """Lazy function that returns the command, called when the command is."""
    summary: str
    section: Section = "Results"


def lazy(module: str, name: str) -> Callable[[], Any]:
    """Return a lazy function of the object ``name`` (with dots: attributes) of ``module``."""

    def imported() -> Any:
        return attrgetter(name)(import_module(module))

    imported.__module__, imported.__name__ = module, name  # as errors name it
    return imported


@dataclass(frozen=True)
class Model:
    """One model: the section `trainer.NAME` of the configuration, and its training."""

    summary: str
    """One line for `--help`."""
    config: type[ConfigBranch]
    training: Callable[[], Training]
    """Lazy function of its training, called by the trainer alone."""
    section: str = ""
    """Model of the workload whose section it reads, too, in the place of one of its own."""


@dataclass(frozen=True)
class Workload:
    """One folder of `workloads/`, as the engine sees it. Its module `workload` holds it as WORKLOAD.

    Its verbs, if it has any, are in its module `verbs` as VERBS.
    """

    name: str
    schema: EventSchema
    """Columns, where files hold them, and which values they may have."""
    models: Mapping[str, Model]
    """Models by name, unique among all workloads; the first is the default."""
    functions: Mapping[str, Callable[[], Callable[..., Any]]] = field(default_factory=dict)
    """Lazy functions of its functions for Python by name; each of these calls the same code as the command.

    simulate(folder, *, events, files, seed, force, ...): writes simulated events.
    load(front, run, task_state, device) -> workloads.base.checkpoint.TrainedModel.
    evaluate(front, say, *, checkpoint, inputs, ...) -> EvaluationReport: options as those of the command."""
    importers: Mapping[str, Callable[[], Importer]] = field(default_factory=dict)
    """Lazy function of the importer of each foreign layout, by the layout's name."""

    @property
    def default_model(self) -> str:
        """Model that is trained if none is named."""
        return next(iter(self.models))


@dataclass(frozen=True)
class ForeignFile:
    """File that becomes one file of the workload's layout."""

    path: Path
    stem: str
    """Name of the new file, without suffix."""
    rows: int
    """Events in it."""


class ForeignFiles(Protocol):
    """Opened files of a foreign layout, which belong together."""

    @property
    def schema(self) -> EventSchema:
        """Columns of the new files, all of them stored: without those that the foreign files can't fill."""

    @property
    def files(self) -> Sequence[ForeignFile]:
        """Files, in the order in which they are read fastest."""

    @property
    def notes(self) -> Sequence[str]:
        """Facts about the files that the user should know, a line each."""

    def version(self, file: ForeignFile) -> str:
        """Short text for the content of all that ``file`` is made from: another if one of these files has changed.

        Raises BadInputError that names a file that can't be read.
        """

    def write_beside(self, out: Path) -> None:
        """Write what the new files need beside them into the folder ``out``. Raises BadInputError."""

    def rows(self, file: ForeignFile, most: int) -> Iterator[RaggedRows]:
        """Events of the file in order, in bounded memory: `file.rows` rows, or less where events have no particles.

        Of an event with more than ``most`` particles the best ones are kept, the rest is counted as dropped.
        Raises BadInputError that names file, row and expected value.
        """


class Importer(NamedTuple):
    """Reader of one foreign layout for `icestream convert`: see `Workload.importers`."""

    recognises: Callable[[Path], bool]
    """True if the file or folder is of this layout, by content. Reads a listing and a footer at most."""
    open: Callable[[Sequence[Path]], ForeignFiles]
    """Files in these places. Raises BadInputError if they aren't of this layout or something is missing."""


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
