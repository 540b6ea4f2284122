"""Root of the configuration tree, and its loading: defaults, the run's own file, TOML, environment, flags."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from common.atomic_file import OWNER_ONLY, replace_file
from common.config import ConfigBranch, SourceConfig, StreamConfig, TransportConfig
from common.errors import BadInputError
from common.files.remote_access import RemoteAccess
from common.mistakes import GONE, remove, unknown_key, validated
from common.own_code import is_own
from common.pelican.config import PelicanConfig
from common.pelican.tokens.config import TokenConfig
from common.private_path import TRUST_VARIABLE, require_private
from common.run_dir import CONFIG_FILE, open_in_run
from common.schema import EventSchema
from common.seed import no_bool
from services.config.decoder import DecoderConfig
from services.config.fetcher import FetcherConfig
from services.config.leaves import leaves
from services.config.local import LocalConfig
from services.config.outputs import OutputsConfig
from services.config.trainer import COMMON_SECTIONS, NO_MODEL, TrainerConfig, is_known_model, removed_model
from workloads import registry

ENVIRONMENT_PREFIX = "ICESTREAM_"


class Config(ConfigBranch):
    """Configuration of a complete run."""

    input: tuple[str, ...] = ()
    """Files, directories, globs or URLs, in any number."""
    workload: str = registry.DEFAULT
    """Workload: the ragged columns that the run streams."""
    seed: Annotated[int, BeforeValidator(no_bool)] = Field(0, ge=0, lt=2**63)
    """Seed of the plan, the shuffle and the weights."""
    epochs: int = Field(1, ge=0)
    """Times the inventory is read. 0: without end (then set trainer.max_steps)."""
    source: SourceConfig = SourceConfig()
    stream: StreamConfig = StreamConfig()
    transport: TransportConfig = TransportConfig()
    pelican: PelicanConfig = PelicanConfig()
    token: TokenConfig = TokenConfig()
    fetcher: FetcherConfig = FetcherConfig()
    decoder: DecoderConfig = DecoderConfig()
    trainer: TrainerConfig = TrainerConfig()
    outputs: OutputsConfig = OutputsConfig()
    local: LocalConfig = LocalConfig()

    @model_validator(mode="after")
    def _counts_alone(self) -> Self:
        """Refuse settings that `trainer.model = "none"` can't use."""
        if self.trainer.model == NO_MODEL and self.local.trainers > 1:
            raise ValueError(
                f"trainer.model = 'none' counts in one trainer, but local.trainers = {self.local.trainers}: use"
                " --trainers 1, or a model"
            )
        if self.trainer.model == NO_MODEL and self.trainer.start_from:
            raise ValueError(
                f"trainer.model = 'none' has no weights, but trainer.start_from = {self.trainer.start_from!r}: leave"
                " one of them out"
            )
        return self

    @model_validator(mode="after")
    def _shards_are_on_their_machines(self) -> Self:
        if self.stream.shards > 1 and (self.transport.listen or self.transport.connect):
            raise ValueError(
                f"stream.shards = {self.stream.shards}: a trainer reads its shards on their machine, so that"
                " transport.listen and transport.connect can't be used with it; use stream.shards=1"
            )
        return self

    @model_validator(mode="after")
    def _held_out_events_have_ids(self) -> Self:
        if self.stream.held_out and registry.workload(self.workload).schema.identity is None:
            raise ValueError(
                f"stream.held_out = {self.stream.held_out}: the events of workload {self.workload} have no id by which"
                " to choose them (EventSchema.identity); hold out files instead, and name these in"
                " trainer.validation.input"
            )
        return self

    def own_json(self, indent: int | None = None) -> str:
        """The tree as JSON without sections of other workloads' models: those may not be installed where it is read."""
        others = {name for one in registry.every_workload() if one.name != self.workload for name in one.models}
        return self.model_dump_json(indent=indent, exclude={"trainer": others})

    def stored_workload(self) -> EventSchema:
        """Workload, read from files as `source` describes them. Raises BadInputError."""
        return registry.workload(self.workload).schema.stored_as(self.source)

    def remote_access(self) -> RemoteAccess:
        """Settings of the clients for remote files."""
        return RemoteAccess(self.pelican, self.token, self.fetcher.transfers, self.input, self.outputs.destination)

    def of_shard(self, shard: int | None, on_machine: int = 1) -> Config:
        """Configuration of the fetcher and the decoders of one shard; None: of a run without shards.

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
        return self.model_copy(update={"stream": self.stream.of_shard(shard), "fetcher": fetcher, "local": local})

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

    @model_validator(mode="after")
    def _model_belongs_to_the_workload(self) -> Config:
        models = registry.workload(self.workload).models
        if self.trainer.model not in (*models, NO_MODEL) and not is_own(self.trainer.model):
            raise ValueError(
                f"trainer.model = {self.trainer.model!r} is no model of workload = {self.workload!r}: use one of"
                f" {', '.join(models)}"
            )
        return self


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
    former = _refit(tree)
    mistakes: list[str] = []
    with _collected(mistakes):
        _merge(tree, _toml_settings(toml, mistakes))
    for key, value in typed_settings(assignments, environment, mistakes):
        with _collected(mistakes):
            _assign(tree, key, value)
    for key, value in (flags or {}).items():
        if value is not None:
            with _collected(mistakes):
                _assign(tree, key, value)
    if former is not None and tree["trainer"].get("model") == former:
        raise BadInputError(f"this run is of the model {former!r}: {removed_model(former)}")
    return validated(Config.model_validate, tree, list(known_keys()), mistakes)


def _toml_settings(toml: Path | None, mistakes: list[str]) -> dict[str, Any]:
    """Settings of a TOML file; ``mistakes`` grows by unknown keys. Raises BadInputError if it can't be read."""
    tree = read_toml(toml) if toml is not None else {}
    for key, _ in list(leaves(tree)):
        if any(known.startswith(f"{key}.") for known in known_keys()):
            continue  # a value in the place of a branch: validation reports it
        try:
            full_key(key, str(toml))
        except BadInputError as error:
            mistakes.append(str(error))
            remove(tree, key)
    return tree


@contextmanager
def _collected(mistakes: list[str]) -> Iterator[None]:
    """Collect the text of a BadInputError instead of raising it."""
    try:
        yield
    except BadInputError as error:
        mistakes.append(str(error))


def store_config(run_dir: Path, config: Config) -> None:
    """Write the resolved tree into the run directory, so that any service can be started from it alone.

    See Config.own_json.
    """
    stored = config.own_json(indent=2) + "\n"
    # For the owner only: an input may be a URL with a secret in it.
    replace_file(run_dir / CONFIG_FILE, stored, durable=True, mode=OWNER_ONLY)


def typed_settings(
    assignments: Sequence[str], environment: Mapping[str, str], mistakes: list[str]
) -> Iterator[tuple[str, object]]:
    """Full key and value of each setting of the environment, then of --set; ``mistakes`` grows by those of no use."""
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


_TABLES = ("source.fields", "source.columns", "trainer.own")
"""Keys of tables with user-defined names."""


def settings(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Dotted key and field of every value of the tree."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from settings(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def known_keys() -> Iterator[str]:
    """Every dotted key of the tree that holds a value."""
    return (key for key, _ in settings())


def value_of(config: Config, key: str) -> object:
    """Value of a dotted key."""
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def full_key(key: str, source: str) -> str:
    """Full key; a last part that only one key has is enough."""
    keys = list(known_keys())
    if key in keys or any(key.startswith(f"{table}.") for table in _TABLES):
        return key
    same_name = [known for known in keys if known.rpartition(".")[2] == key]
    if len(same_name) == 1:
        return same_name[0]
    if same_name:
        raise BadInputError(f"{source}: {key!r} could be any of {', '.join(same_name)}; write it in full")
    raise BadInputError(unknown_key(key, keys, source))


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


def _refit(tree: dict[str, Any]) -> str | None:
    """The run's own model if this version does not have it, else None.

    Deletes other models' sections if this version does not know them: a config.json has those of all models of its
    version. Raises BadInputError for other keys of another version.
    """
    for gone in GONE:
        remove(tree, gone)
    trainer = tree.get("trainer")
    if not isinstance(trainer, dict) or tree.get("workload") not in registry.names():
        return None
    known, model = set(known_keys()), trainer.get("model")
    removed = model if isinstance(model, str) and not is_known_model(model) else None
    of_models = {name for name, value in trainer.items() if isinstance(value, dict)} - COMMON_SECTIONS
    for name in of_models - ({model} if removed is None else set()):
        if {f"trainer.{name}.{key}" for key, _ in leaves(trainer[name])} - known:
            del trainer[name]
    tables = tuple(f"{table}." for table in _TABLES)
    if strange := [key for key, _ in leaves(tree) if key not in known and not key.startswith(tables)]:
        raise BadInputError(
            f"the stored configuration has keys that this version of icestream does not know ({', '.join(strange)}):"
            " resume with the version that wrote it, or start over with --fresh"
        )
    return removed


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise BadInputError(f"{path}: no such configuration file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: not TOML ({error})") from None


def _merge(tree: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping):
            branch = tree.setdefault(key, {})
            if isinstance(branch, dict):
                _merge(branch, value)
                continue
        tree[key] = value


def _assign(tree: dict[str, Any], dotted: str, value: object) -> None:
    *branches, leaf = dotted.split(".")
    for branch in branches:
        tree = tree.setdefault(branch, {})
        if not isinstance(tree, dict):
            raise BadInputError(f"{branch} = {tree!r}: expected a table of settings, since {dotted} is one of them")
    tree[leaf] = value


def _parse_value(text: str) -> object:
    """Value of a TOML expression (number, true, [list], "text"); anything else is taken as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
