"""Settings that several services share or that the Pelican client reads, and mistakes in settings for their user."""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from common.errors import BadInputError, BadInputsError
from common.text import without_secrets

T = TypeVar("T")

_TYPING_ERROR = 0.8
"""Similarity of a key and one with a typing error."""
_RESEMBLANCE = 0.5
_MOST_SHOWN = 6


def refuse(mistakes: Iterable[str]) -> None:
    """Raise BadInputError with the mistakes, each once; nothing without any."""
    lines = tuple(dict.fromkeys(without_secrets(line) for line in mistakes))  # a value may be a token
    if len(lines) == 1:
        raise BadInputError(lines[0])
    if lines:
        raise BadInputsError("the configuration", lines)


OTHER_NAMES = {
    **dict.fromkeys(("batch_size", "global_batch_size"), "batch_events"),
    **dict.fromkeys(("num_workers", "workers", "num_threads"), "decoders"),
    **dict.fromkeys(("path", "paths", "files", "urls", "local", "remote", "input", "data_files"), "inputs"),
    **dict.fromkeys(("filter", "filters", "predicate", "select"), "where"),
    **dict.fromkeys(("map", "transforms", "map_fn"), "transform"),
    **dict.fromkeys(("proportion", "proportions", "probabilities"), "weights"),
    **dict.fromkeys(("epoch_size", "take", "max_events", "subsample"), "limit"),
    **dict.fromkeys(("split", "subset"), "part"),
    "held_out": "settings={'stream.held_out': ...}",
    **dict.fromkeys(("shuffle_seed", "random_state"), "seed"),
    **dict.fromkeys(("cache_dir", "local_cache"), "run_dir"),
}
"""Arguments of other libraries, and those of icestream.stream that do the same."""


def unknown_key(key: str, keys: Sequence[str], source: str = "") -> str:
    """Line about a key that does not exist, with the nearest that does."""
    leaves = {known.rpartition(".")[2]: known for known in keys}
    name = key.rpartition(".")[2]

    def near(cutoff: float) -> list[str]:
        whole = difflib.get_close_matches(key, keys, n=1, cutoff=cutoff)
        return whole or [leaves[m] for m in difflib.get_close_matches(name, leaves, n=1, cutoff=cutoff)]

    match = [leaves[OTHER_NAMES[name]]] if OTHER_NAMES.get(name) in leaves else near(_TYPING_ERROR)
    match = match or [known for known in keys if name in known.rpartition(".")[2].split("_")]
    match = match or near(_RESEMBLANCE)
    hint = (
        f"did you mean {' or '.join(map(repr, match[:_MOST_SHOWN]))}?"
        if match
        else "`icestream config --keys` lists all keys"
    )
    return f"{source}{': ' if source else ''}unknown configuration key {key!r}; {hint}"


def validated(
    validate: Callable[[Mapping[str, Any]], T],
    tree: Mapping[str, Any],
    keys: Sequence[str],
    mistakes: Sequence[str] = (),
    section: str = "",
) -> T:
    """Valid configuration of ``tree``. Raises BadInputError with its mistakes, behind those that are known already.

    ``section``: key of the table that the tree is, if it is one of a user's own model; ``keys`` are full ones.

    Wrong values hide the checks between fields: those are made again without them.
    """
    found, removed = list(mistakes), set[str]()
    left = copy.deepcopy(dict(tree))
    while True:
        try:
            config = validate(left)
        except ValidationError as error:
            lines = _lines(error, keys, section)
            # A check of a default in the place of a removed value is not about the user's.
            found += [line for _, line in lines if not any(key in line for key in removed)]
            wrong = {key for key, _ in lines if remove(left, key.removeprefix(f"{section}."))}
            removed |= wrong
            if wrong:
                continue
            refuse(found)
            raise
        refuse(found)
        return config


def _lines(error: ValidationError, keys: Collection[str], section: str) -> list[tuple[str, str]]:
    """Dotted key, and line about it, of each error."""
    found: list[tuple[str, str]] = []
    for detail in error.errors():
        key = ".".join(map(str, (section, *detail["loc"]) if section else detail["loc"]))
        key = key.removesuffix(".str").removesuffix(".tuple[str, ...]")  # pydantic's names of a union's types
        if detail["type"] == "extra_forbidden":
            line = unknown_key(key, list(keys))
            if section:  # of a user's own model
                names = [known.removeprefix(f"{section}.") for known in keys]
                match = difflib.get_close_matches(key.removeprefix(f"{section}."), names, n=1)
                hint = f"did you mean {f'{section}.{match[0]}'!r}?" if match else f"{section} has {', '.join(names)}"
                line = f"unknown configuration key {key!r}; {hint}"
        elif detail["type"] == "value_error":
            text = str(detail["ctx"]["error"])  # a check between fields names them itself
            if section:  # text of the user's own
                line = f"{key} = {detail['input']!r}: {text}" if key in keys else f"{section}: {text}"
            else:
                line = f"{key} = {detail['input']!r}: expected {text}" if key in keys else text
        elif detail["type"] == "missing":
            line = f"{key}: a value is needed, it has no default"
        else:
            line = f"{key} = {detail['input']!r}: {_expected(detail)}"
            if found and found[-1][0] == key:  # the next type of a union
                line = f"{found.pop()[1]}, or {_expected(detail).removeprefix('expected ')}"
        found.append((key, line))
    return found


def _expected(detail: ErrorDetails) -> str:
    """Expected value in plain words, from an error of pydantic."""
    context = {
        name: f"{value:g}" if isinstance(value, float) else value for name, value in detail.get("ctx", {}).items()
    }
    words = {
        "greater_than": "a number above {gt}",
        "greater_than_equal": "a number of at least {ge}",
        "less_than": "a number below {lt}",
        "less_than_equal": "a number of at most {le}",
        "literal_error": "{expected}",
        "int_parsing": "a whole number",
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_parsing": "a number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_parsing": "true or false",
        "bool_type": "true or false",
        "string_type": "a text",
        "string_too_short": "a text that is not empty",
        "tuple_type": 'a list, for example ["a", "b"] or [1, 2]',
        "dict_type": "a table",
        "model_type": "a table of settings",
        "path_type": "a path",
    }.get(detail["type"])
    return f"expected {words.format(**context)}" if words is not None else detail["msg"]


def remove(tree: dict[str, Any], dotted: str) -> bool:
    """Remove the value or branch of a key; for an element of a list, the list. False if there is none."""
    name, _, below = dotted.partition(".")
    if name not in tree:
        return False
    if below and isinstance(tree[name], dict):
        return remove(tree[name], below)
    del tree[name]
    return True


MIB = 1 << 20
CONNECT_TIMEOUT_S = 600.0
"""Maximum wait of a decoder or a trainer for the run's fetcher, which an engine may start minutes later."""
MOST_TRAINERS = 16
"""Most trainers of a shard: the microbatches of a step are cut so fine that each gets some."""


class ConfigBranch(BaseModel):
    """One branch of the configuration tree: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        defer_build=True,  # most processes use the whole tree only, which has validators of its own for each branch
    )


class StreamConfig(ConfigBranch):
    """Division of source files into units, microbatches, batches. Every field but `slots` is part of the plan hash."""

    block_files: int = Field(8, ge=1, le=1024)
    """Files staged and shuffled together."""
    unit_events: int = Field(65_536, ge=1)
    """Events at which a unit is closed, or earlier where the next row group would not fit the slot. The more row groups
    a unit has, the better its events are mixed: see `icestream plan`."""
    batch_events: int = Field(256, ge=1)
    """Events of one optimiser step."""
    max_particles: int = Field(65_536, ge=1)
    """Maximum particles in one microbatch: bounds the device's memory, unless a model joins microbatches to fill it up
    to its own ``chunk_particles``."""
    max_squared_particles: int = Field(0, ge=0)
    """Maximum in one microbatch of Σ N² over its events with N particles each: bounds memory and time of attention
    between the particles of an event. An event that alone has more is an outlier. 0: no bound."""
    max_particles_per_event: int = Field(0, ge=0)
    """Maximum particles of an event in the stream; a larger one is an outlier and is stored in `outliers/`.
    0: as many as fit a microbatch."""
    where: str = Field("", max_length=1000)
    """Condition that events of the stream fulfil, such as `primary.energy_gev > 1e6 and muons.count >= 5`: fields of
    events, numbers of particles and columns of `source.extra`, as in the files. The others are counted as filtered; row
    groups in which, by their statistics, no event fulfils it are not read. Empty: all events."""
    held_out: float = Field(0.0, ge=0, lt=1)
    """Share of the events that are never trained on, chosen by a hash of their ids: the same ones in every run. The
    validation block is drawn from them, and `icestream evaluate` can use them alone."""
    part: Literal["train", "held_out", "all"] = "train"
    """Events of the stream by `held_out`: those for training, those held out of it, or both."""
    transform: str = ""
    """Function of yours that the decoders call, `package.module:function`, to change the numbers of each unit in place,
    or to leave out particles (docs/how-to/python.md)."""
    shuffle: bool = True
    """Permute files, row groups over the units of a block, and events inside a unit. Off: source order."""
    length_buckets: int = Field(0, ge=0)
    """Batches whose events are sorted by their number of particles together, so that those of a batch are of similar
    length; the batches are then permuted. 0 or 1: off. Needs `shuffle`."""
    shards: int = Field(1, ge=1, le=256)
    """Number of parts to which the blocks are dealt in turn, each with a fetcher, decoders, an arena and one
    stream of its own, which its trainers share (docs/how-to/several-gpus.md)."""
    weights: tuple[Annotated[float, Field(gt=0, le=1e9)], ...] = ()
    """Part of each batch that is drawn from each of `input`, in their order: numbers above 0 in any unit, `[0.7, 0.3]`.
    Each input is then a set, and a shard, of its own. An epoch ends once each set was read; the smaller ones are read
    again meanwhile. Empty: all inputs are one set."""
    slots: int = Field(8, ge=1)
    """Slots of the arena of each shard: maximum units in decoding, ready or in use at a time."""
    slot_mib: float = Field(8.0, gt=0)
    """Size of one slot. The arena takes slots × slot_mib of memory."""
    _shard: int | None = PrivateAttr(None)

    @property
    def slot_bytes(self) -> int:
        """Size of one slot, rounded down to whole pages."""
        return int(self.slot_mib * MIB) // 4096 * 4096

    @property
    def is_mixed(self) -> bool:
        """True if each shard is a set of its own, of which `weights` says the part of a batch."""
        return len(self.weights) > 1

    def events_of_shard(self, shard: int) -> int:
        """Return the events that an optimiser step takes of a shard; of a set, about so many."""
        if self.is_mixed:
            return max(round(self.batch_events * self.weights[shard] / math.fsum(self.weights)), 1)
        return -(-self.batch_events // self.shards)

    def due_of_shards(self, trained: Sequence[int]) -> list[int]:
        """Return the events that the next step takes of each shard, given those of the former steps.

        A step takes whole microbatches, and so a few more than are due: of sets, as many fewer are due afterwards.
        """
        if not self.is_mixed:
            return [self.events_of_shard(0)] * self.shards
        of_one = (sum(trained) + self.batch_events) / math.fsum(self.weights)
        bounds = [round(of_one * weight) for weight in accumulate(self.weights, initial=0.0)]  # their sum is exact
        return [max(end - first - num, 0) for (first, end), num in zip(pairwise(bounds), trained, strict=True)]

    @property
    def shard_batch_events(self) -> int:
        """Events that an optimiser step takes of this shard; of the stream of the whole run, of the first one."""
        return self.events_of_shard(self._shard or 0)

    @property
    def microbatch_events(self) -> int:
        """Most events of a microbatch: a step of a shard has enough of them for each of its trainers."""
        return -(-self.shard_batch_events // MOST_TRAINERS)

    @property
    def shard(self) -> int | None:
        """Number of the shard that this is the stream of, see of_shard(); None for the stream of the whole run."""
        return self._shard if self.shards > 1 else None

    def of_shard(self, shard: int) -> Self:
        """Stream of one shard, with blocks and units numbered from 0. Raises ValueError if there is no such shard."""
        if not 0 <= shard < self.shards:
            raise ValueError(f"shard {shard} is none of {self.shards}")
        stream = self.model_copy()
        stream._shard = shard
        return stream

    def shards_of_node(self, node: int = 0, nodes: int = 1) -> range:
        """Return the numbers of the shards that one of ``nodes`` machines runs; none of a run without shards."""
        each = self.shards // nodes
        return range(node * each, (node + 1) * each) if self.shards > 1 else range(0)

    def block_of_run(self, block: int) -> int:
        """Number, in the run, of a block of this stream: block b of the run belongs to shard b mod shards; sets have
        blocks of their own."""
        return block if self.shard is None or self.is_mixed else block * self.shards + self.shard

    @property
    def outlier_above(self) -> int:
        """Maximum particles of an event that is not an outlier."""
        if self.max_particles_per_event:
            return self.max_particles_per_event
        return min(self.max_particles, math.isqrt(self.max_squared_particles) or self.max_particles)

    @model_validator(mode="before")
    @classmethod
    def _sets_are_shards(cls, tree: Any) -> Any:
        weights = tree.get("weights") if isinstance(tree, dict) else None
        if isinstance(weights, list | tuple) and len(weights) > 1 and tree.get("shards", 1) == 1:
            return tree | {"shards": len(weights)}
        return tree

    @field_serializer("shards")
    def _as_given(self, shards: int) -> int:
        return 1 if self.weights else shards  # stored, it would outlive the weights

    @model_validator(mode="after")
    def _settings_fit(self) -> StreamConfig:
        if len(self.weights) > self.batch_events:
            raise ValueError(f"stream.weights has {len(self.weights)} sets: expected at most stream.batch_events")
        if self.weights and self.shards != len(self.weights):
            raise ValueError(
                f"stream.shards = {self.shards}, but each of the {len(self.weights)} sets of stream.weights is a shard:"
                " leave stream.shards at 1"
            )
        if self.length_buckets > 1 and not self.shuffle:
            raise ValueError(
                f"stream.length_buckets = {self.length_buckets} sorts events, but stream.shuffle = false keeps the "
                "order of the source; use one of the two"
            )
        if self.max_particles_per_event > self.max_particles:
            raise ValueError(
                f"stream.max_particles_per_event = {self.max_particles_per_event} is larger than "
                f"stream.max_particles = {self.max_particles}: such an event fits no microbatch; "
                "lower the first or raise the second"
            )
        if 0 < self.max_squared_particles < self.max_particles_per_event**2:
            raise ValueError(
                f"stream.max_particles_per_event = {self.max_particles_per_event}: the square is larger than "
                f"stream.max_squared_particles = {self.max_squared_particles}, so that such an event fits no "
                f"microbatch; lower the first to {math.isqrt(self.max_squared_particles)} or raise the second"
            )
        if self.part == "held_out" and not self.held_out:
            raise ValueError('stream.part = "held_out" needs the share of these events: set stream.held_out')
        if self.slot_bytes < 4096:
            raise ValueError(f"stream.slot_mib = {self.slot_mib} is smaller than one page of 4096 bytes; raise it")
        return self


class SourceConfig(ConfigBranch):
    """Content of the source files. Part of the plan hash."""

    fields: dict[str, tuple[str, ...]] = {}
    """Names of the numbers in each innermost list, in the files' order, by file column: for files with more or other
    numbers than the workload's (docs/reference/file-formats.md has examples). A name unknown to the workload is
    skipped. Ids may be among the numbers of an event: their names are those of the columns that the file lacks. In HDF5
    files the ids come before these."""
    columns: dict[str, str | tuple[str, ...]] = {}
    """Names that Parquet files give to the workload's columns, by the workload's name: another name, or, for a column
    of lists, the names of the columns with one number each, in order (docs/reference/file-formats.md has examples)."""
    ids: Literal["columns", "rows"] = "columns"
    """Ids of events in files without columns of ids. `columns`: such files are refused. `rows`: the ids are a digest of
    the file's footer, and the number of the row (docs/reference/file-formats.md)."""
    extra: dict[str, str] = {}
    """Further columns of Parquet files that are handed through, and their types: `{weight = "float64"}` with a number
    for each event, `{time_ns = "list<float32>"}` for each particle. A list of names takes the types from the first
    local file. Their values are not checked: NaN stays."""
    depth_kind: Literal["vertical", "slant"] = "vertical"
    """Meaning of depth in the files: metres below the surface, or metres along the track. After decoding it is
    vertical."""
    nulls: Literal["error", "empty"] = "error"
    """Treatment of nulls. `error`: an event with a null is invalid. `empty`: an event without its event
    columns is dropped and counted as empty, a null list of particles is an event without particles, a null particle is
    dropped and counted."""
    max_invalid_share: float = Field(0.05, ge=0, le=1)
    """Largest share of invalid events in a row group, or in the part of a large one that a unit holds (rounded up to a
    whole event): those are set aside one by one. More of them quarantine it, since its columns are probably not what
    their names say."""

    @field_validator("extra", mode="before")
    @classmethod
    def _as_table(cls, extra: Any) -> Any:
        """Names without types: run_config.py looks them up in the files."""
        is_list = isinstance(extra, list | tuple) and all(isinstance(name, str) for name in extra)
        return dict.fromkeys(extra, "") if is_list else extra

    @field_validator("columns", mode="before")
    @classmethod
    def _with_dotted_names(cls, columns: Any) -> Any:
        """Names as keys, if some of them have dots: a dotted key of the configuration is a table in a table."""
        if not isinstance(columns, Mapping):
            return columns
        flat: dict[str, Any] = {}
        for name, value in columns.items():
            inner = cls._with_dotted_names(value) if isinstance(value, Mapping) else {"": value}
            flat |= {f"{name}.{rest}".rstrip("."): one for rest, one in inner.items()}
        return flat


class TransportConfig(ConfigBranch):
    """Connections between the processes of a run."""

    sockets: Literal["abstract", "folder"] = "abstract"
    """Kind of unix sockets. `abstract`: names without files, for one host. `folder`: socket files in the run directory,
    for containers that share it as a volume, and for a host with possibly hostile users: they can take an abstract
    name first."""


class PelicanConfig(ConfigBranch):
    """Settings read by common/pelican. None of them changes the training data."""

    checksums: Literal["inventory", "origin"] = "inventory"
    """Checksums that transfers are checked with, besides their size. `inventory`: those in a list file. `origin`: where
    there is none, that of the origin, with one more request for each file (docs/explanation/security.md)."""


class TokenConfig(ConfigBranch):
    """Settings read by common/pelican: names of files, never a token (docs/how-to/tokens.md)."""

    file: Path | None = None
    """File that holds the token: plain text, or JSON with `access_token`. Empty: BEARER_TOKEN, BEARER_TOKEN_FILE,
    $XDG_RUNTIME_DIR/bt_u$UID, /tmp/bt_u$UID, _CONDOR_CREDS, in this order."""
    federation: str = ""
    """Federation of the found tokens, by its host: none of them is sent to another one. Empty: a token is sent to
    namespaces that accept its issuer; one without issuer is never sent."""
    storage_prefix: str = "/icecube/wipac"
    """Prefix of a pelican:// path that the issuer's scopes omit (docs/how-to/tokens.md). A path that isn't below it is
    used as a whole."""

    @field_validator("file")
    @classmethod
    def _is_a_name(cls, value: Path | None) -> Path | None:
        if value is not None and re.search(r"(^|/)eyJ[\w-]*\.", str(value)):
            raise ValueError("the name of a file that holds the token, not the token itself: anybody may read it here")
        return value

    @field_validator("storage_prefix")
    @classmethod
    def _is_absolute(cls, value: str) -> str:
        parts = value.split("/")
        if value and (parts[0] or ".." in parts or "." in parts or re.search(r"[\s*?\[\]{}]", value)):
            raise ValueError("an absolute path without wildcards, for example /icecube/wipac, or nothing")
        return "/" + "/".join(part for part in parts if part) if value.strip("/") else ""
