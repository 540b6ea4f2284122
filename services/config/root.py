"""Root of the configuration tree, its loading from five sources, and what a process does with it when it starts.

The sources: defaults, the run's own file, TOML, environment, flags.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from common import config as shared
from common.atomic_file import OWNER_ONLY, replace_file
from common.errors import BadInputError
from common.options import no_bool
from common.own_code import OWN_SECTION, is_own
from common.paths import CONFIG_FILE, TRUST_VARIABLE, open_in_run, require_private
from common.process import StopFlag
from common.schema import EventSchema
from services.config.settings import (
    DecoderConfig,
    FetcherConfig,
    Inputs,
    LocalConfig,
    OutputsConfig,
    TrainerConfig,
    model_names,
)
from workloads import registry
from workloads.registry import NO_MODEL, section_name

if TYPE_CHECKING:
    from common.files.remotes import RemoteAccess

logger = logging.getLogger(__name__)

ENVIRONMENT_PREFIX = "ICESTREAM_"
STOP_TIMEOUT_S = 60.0
"""Time for a process to stop cleanly before it is killed: a trainer writes a checkpoint in it."""
FINAL_SYNC_S = 120.0
"""Time limit of the last copies of outputs at a run's end: a checkpoint of 100 MB takes it at 1 MB/s."""


class Config(shared.ConfigBranch):
    """Configuration of a complete run."""

    input: Inputs = ()
    """Files, directories, globs or URLs, in any number; `batch_{1..650}.parquet` stands for 650 of them."""
    workload: str = registry.DEFAULT
    """Workload: the ragged columns that the run streams."""
    seed: Annotated[int, BeforeValidator(no_bool)] = Field(0, ge=0, lt=2**63)
    """Seed of the plan, the shuffle and the weights."""
    epochs: int = Field(1, ge=0)
    """Times the inventory is read. 0: without end (then set trainer.max_steps)."""
    source: shared.SourceConfig = shared.SourceConfig()
    stream: shared.StreamConfig = shared.StreamConfig()
    transport: shared.TransportConfig = shared.TransportConfig()
    pelican: shared.PelicanConfig = shared.PelicanConfig()
    token: shared.TokenConfig = shared.TokenConfig()
    fetcher: FetcherConfig = FetcherConfig()
    decoder: DecoderConfig = DecoderConfig()
    trainer: TrainerConfig = TrainerConfig()
    outputs: OutputsConfig = OutputsConfig()
    local: LocalConfig = LocalConfig()

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.trainer.model == NO_MODEL and self.trainer.start_from:
            raise ValueError(
                f"trainer.model = 'none' has no weights, but trainer.start_from = {self.trainer.start_from!r}: leave"
                " one of them out"
            )
        if self.stream.held_out and registry.workload(self.workload).schema.identity is None:
            raise ValueError(
                f"stream.held_out = {self.stream.held_out}: the events of workload {self.workload} have no id by which"
                " to choose them (EventSchema.identity); hold out files instead, and name these in"
                " trainer.validation.input"
            )
        models = registry.workload(self.workload).models
        if self.trainer.model not in (*models, NO_MODEL) and not is_own(self.trainer.model):
            raise ValueError(
                f"trainer.model = {self.trainer.model!r} is no model of workload = {self.workload!r}: use one of"
                f" {', '.join(models)}"
            )
        return self

    def own_json(self, indent: int | None = None) -> str:
        """Return the tree as JSON, without models of other workloads: those may not be installed where it is read."""
        others = {name for one in registry.every_workload() if one.name != self.workload for name in one.models}
        return self.model_dump_json(indent=indent, exclude={"trainer": others})

    def stored_workload(self) -> EventSchema:
        """Return the workload, read from files as `source` describes them. Raises BadInputError."""
        return registry.workload(self.workload).schema.stored_as(self.source)

    def remote_access(self) -> RemoteAccess:
        """Return the settings of the clients for remote files."""
        from common.files.remotes import RemoteAccess  # fsspec: a decoder starts without it

        return RemoteAccess(self.pelican, self.token, self.fetcher.transfers, self.input, self.outputs.destination)

    def of_shard(self, shard: int | None, on_machine: int = 1) -> Config:
        """Return the configuration of the fetcher and the decoders of one shard; None: of a run without shards.

        The ``on_machine`` shards of this machine share its disk budget, transfers and cores. Raises BadInputError.
        """
        shards = self.stream.shards
        if shards == 1 and shard in (None, 0):
            return self
        if shard is None or not 0 <= shard < shards:
            which = f"--shard 0 to --shard {shards - 1}" if shards > 1 else "no --shard"
            raise BadInputError(f"stream.shards = {shards}: a fetcher or decoder needs {which}")
        fetcher, local = self.fetcher, self.local
        most = local.max_decoders or (len(os.sched_getaffinity(0)) - 1) // self.decoder.threads
        fetcher = fetcher.of_shard(on_machine)
        if shard:
            fetcher = fetcher.model_copy(update={"metrics_port": 0})
        local = local.model_copy(update={"max_decoders": max(1, most // on_machine)})
        update: dict[str, Any] = {"stream": self.stream.of_shard(shard), "fetcher": fetcher, "local": local}
        if self.stream.is_mixed:  # the trainer ends the epochs
            self.require_sets()
            update |= {"input": self.input[shard : shard + 1], "epochs": 0}
        return self.model_copy(update=update)

    def require_sets(self) -> None:
        """Raise BadInputError unless `stream.weights`, if there are any, are those of the inputs."""
        weights = len(self.stream.weights)
        if weights and (self.fetcher.ranges or len(self.input) != weights):
            given = "fetcher.ranges" if self.fetcher.ranges else f"{len(self.input)} inputs"
            raise BadInputError(f"stream.weights has {weights} numbers, for {given}: expected one for each of `input`")
        if weights and len(set(self.input)) < weights:
            raise BadInputError("stream.weights has an input twice: name each set once")

    @field_validator("workload")
    @classmethod
    def _is_a_workload(cls, workload: str) -> str:
        if workload not in registry.names():
            raise ValueError(f"one of {', '.join(registry.names())}")
        return workload

    @model_validator(mode="before")
    @classmethod
    def _model_of_the_workload(cls, tree: Any) -> Any:
        """Complete a workload without a model by its default model, and a model without a workload by its workload."""
        trainer = tree.get("trainer", {}) if isinstance(tree, dict) else None
        if not isinstance(trainer, dict):
            return tree
        if "workload" in tree and "model" not in trainer and tree["workload"] in registry.names():
            return tree | {"trainer": trainer | {"model": registry.workload(tree["workload"]).default_model}}
        if "workload" not in tree and isinstance(trainer.get("model"), str):
            found = [one.name for one in registry.every_workload() if trainer["model"] in one.models]
            return tree | {"workload": found[0]} if found else tree
        return tree


def load_config(
    stored: Path | Mapping[str, Any],
    *,
    toml: Path | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Config:
    """Resolve the tree. Later wins: defaults, ``stored``, TOML, environment, --set, flags.

    ``stored`` is a run directory, whose config.json is read if it is there, or the contents of such a file.
    ``assignments`` are ``key=value`` texts, ``flags`` maps dotted keys to values (None: not given).
    Raises BadInputError with all mistakes: the key, its source and, for an unknown one, the nearest known key.
    """
    tree: dict[str, Any] = {}
    _merge(tree, _read_stored(stored) if isinstance(stored, Path) else stored)
    known, tables = set(known_keys()), tuple(f"{table}." for table in _TABLES)
    strange = [key for key, _ in leaves(tree) if key not in known and not key.startswith(tables)]
    if strange and tree.get("workload") in registry.names():  # else validation says so: its models' can't be known
        raise BadInputError(
            f"the stored configuration has keys that this version of icestream does not know ({', '.join(strange)}):"
            " resume with the version that wrote it, or start over with --fresh"
        )
    mistakes: list[str] = []
    with _collected(mistakes):
        of_toml = read_toml(toml) if toml is not None else {}
        for key, _ in list(leaves(of_toml)):
            if any(known.startswith(f"{key}.") for known in known_keys()):
                continue  # a value in the place of a branch: validation reports it
            try:
                full_key(key, str(toml))
            except BadInputError as error:
                mistakes.append(str(error))
                shared.remove(of_toml, key)
        _merge(tree, of_toml)
    given_flags = ((key, value) for key, value in (flags or {}).items() if value is not None)
    for key, value in chain(typed_settings(assignments, environment, mistakes), given_flags):
        *branches, leaf = key.split(".")
        branch = tree
        with _collected(mistakes):
            for name in branches:
                branch = branch.setdefault(name, {})
                if not isinstance(branch, dict):
                    raise BadInputError(
                        f"{name} = {branch!r}: expected a table of settings, since {key} is one of them"
                    )
            branch[leaf] = value
    return shared.validated(Config.model_validate, tree, list(known_keys()), mistakes)


@contextmanager
def _collected(mistakes: list[str]) -> Iterator[None]:
    """Collect the text of a BadInputError instead of raising it."""
    try:
        yield
    except BadInputError as error:
        mistakes.append(str(error))


def store_config(run_dir: Path, config: Config) -> None:
    """Write the resolved tree into the run directory, so that any service can be started from it alone."""
    # For the owner only: an input may be a URL with a secret in it.
    replace_file(run_dir / CONFIG_FILE, config.own_json(indent=2) + "\n", durable=True, mode=OWNER_ONLY)


def typed_settings(
    assignments: Sequence[str], environment: Mapping[str, str], mistakes: list[str]
) -> Iterator[tuple[str, object]]:
    """Yield full key and value of the settings of the environment, then of --set; ``mistakes`` grows."""
    for name, text in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX) and name != TRUST_VARIABLE:
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            with _collected(mistakes):
                yield full_key(key, f"environment variable {name}"), _parse_value(text)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        with _collected(mistakes):
            if not equals:
                raise BadInputError(
                    f"--set {assignment}: expected key=value, for example --set stream.batch_events=512"
                )
            yield full_key(key.strip(), "--set"), _parse_value(text)


_TABLES = ("source.fields", "source.columns", "source.extra", "trainer.own")
"""Keys of tables with user-defined names."""


def settings(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted key and field of every value of the tree."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from settings(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def known_keys() -> Iterator[str]:
    """Yield every dotted key of the tree that holds a value."""
    return (key for key, _ in settings())


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of everything in the tree that is not a table itself."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def value_of(config: Config, key: str) -> object:
    """Return the value of a dotted key."""
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def full_key(key: str, source: str) -> str:
    """Return the full key; a last part that only one key has is enough."""
    keys = list(known_keys())
    if key in keys or any(key.startswith(f"{table}.") for table in _TABLES):
        return key
    same_name = [known for known in keys if known.rpartition(".")[2] == key]
    if len(same_name) == 1:
        return same_name[0]
    if same_name:
        raise BadInputError(f"{source}: {key!r} could be any of {', '.join(same_name)}; write it in full")
    raise BadInputError(shared.unknown_key(key, keys, source))


def _read_stored(run_dir: Path) -> dict[str, Any]:
    path = run_dir / CONFIG_FILE
    try:
        require_private(path, "")
        with open_in_run(path) as file:
            stored = json.loads(file.read())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BadInputError(f"{path}: not a configuration ({error}); restore it, or use --fresh") from None
    if not isinstance(stored, dict):
        raise BadInputError(f"{path}: not a configuration (expected an object); restore it, or use --fresh")
    return stored


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise BadInputError(f"{path}: no such configuration file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        other = f"; if it is iceaggr's: icestream migrate {path}" if path.suffix in (".yaml", ".yml") else ""
        raise BadInputError(f"{path}: not TOML ({error}){other}") from None


def _merge(tree: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping):
            branch = tree.setdefault(key, {})
            if isinstance(branch, dict):
                _merge(branch, value)
                continue
        tree[key] = value


def _parse_value(text: str) -> object:
    """Return the value of a TOML expression (number, true, [list], "text"); anything else is taken as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


_OF_ANY_PROCESS = 128
"""Open files of any process. Measured: 40 in a decoder (two for each of 16 files), 30 in a fetcher, 18 in a trainer on
the CPU."""
_OF_A_PEER = 4
"""Measured: 3 in the fetcher for each decoder, 1 in the supervisor."""
_OF_A_TRANSFER = 4


def wait_for_config(
    run_dir: Path,
    stop: StopFlag,
    *,
    toml: Path | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> Config | None:
    """Return the configuration of a run once its fetcher has stored it, so that services can start in any order.

    None if a stop is requested before. Raises BadInputError after CONNECT_TIMEOUT_S, and at once for wrong settings.
    """
    load_config(run_dir, toml=toml, assignments=assignments, flags=flags)
    deadline_s = time.monotonic() + shared.CONNECT_TIMEOUT_S
    is_announced = False
    while not (run_dir / CONFIG_FILE).exists():
        if stop:
            return None
        if time.monotonic() > deadline_s:
            raise BadInputError(
                f"{run_dir}: no run was started here for {shared.CONNECT_TIMEOUT_S:g} s; start its fetcher"
            )
        if not is_announced:
            is_announced = True
            missing = "" if run_dir.is_dir() else " (no such folder)"
            logger.info("waiting for a run to be started in %s%s", run_dir, missing)
        time.sleep(0.1)
    return load_config(run_dir, toml=toml, assignments=assignments, flags=flags)


def require_named_model(
    config: Config,
    *,
    toml: Path | None,
    assignments: Sequence[str],
    flags: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Raise BadInputError if the model is code of the user's own, and this start does not name it itself.

    A stored configuration may be anybody's: no code runs because such a file names it.
    """
    model = config.trainer.model
    given = [flags.get("trainer.model")]
    given += [read_toml(toml).get("trainer", {}).get("model")] if toml is not None else []
    given += [value for key, value in typed_settings(assignments, environment, []) if key == "trainer.model"]
    if is_own(model) and model not in given:
        raise BadInputError(
            f"the stored configuration names the model {model}, which is code of your own: if you trust it, name it in"
            f" this start, too: --model {model}"
        )


def unused_settings(
    config: Config,
    *,
    toml: Path | None = None,
    assignments: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """Return lines about settings that were given for another model than that of ``config``.

    A TOML file may have sections of several models: it is told only if it names another model itself.
    """
    model = config.trainer.model
    if model == NO_MODEL:
        return []
    lines = []
    wanted = read_toml(toml).get("trainer", {}).get("model", model) if toml else model
    if wanted != model:
        lines.append(f"{toml}: made for the model {wanted}, but the model {model} was asked for and is trained")
    sections = {*map(section_name, model_names()), OWN_SECTION} - {section_name(model)}
    others = tuple(f"trainer.{name}." for name in sections)
    keys = dict.fromkeys(key for key, _ in typed_settings(assignments, environment, []) if key.startswith(others))
    return [*lines, *(f"{key}: not used by the model {model}" for key in keys)]


def open_files_needed(config: Config) -> int:
    """Return the number of open files that is enough for each process of a run."""
    peers = max(config.local.decoders_at_start, config.local.max_decoders) + config.local.trainers
    transfers = config.fetcher.transfers if any("://" in text for text in config.input) else 0
    return _OF_ANY_PROCESS + _OF_A_PEER * peers + _OF_A_TRANSFER * transfers


def require_open_files(config: Config) -> None:
    """Raise this process's limit of open files to what is needed; its children inherit it.

    A process that has none left can neither take a connection nor start another process: the run would stand still.
    Raises BadInputError if the limit can't be raised.
    """
    needed = open_files_needed(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    with contextlib.suppress(OSError, ValueError):  # above the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    raise BadInputError(
        f"a process may open {hard} files here (ulimit -n), and this run needs up to {needed}: raise the limit, for"
        f" example by `ulimit -n {needed}`, as root or in /etc/security/limits.conf, or lower --decoders"
    )
