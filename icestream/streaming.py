"""`icestream.stream`: batches of ragged events in the caller's own training loop.

Shape suffixes: E events, P particles, F fields of a column.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from common.config import OTHER_NAMES
from common.errors import BadInputError
from common.invalid_events import lines_of_rules
from common.options import Paths, given_path
from common.run_words import counted
from common.schema import EventSchema, Per
from common.status import Counters
from common.transport import StopRequested
from common.unit_arrays import awkward_events
from icestream.stream_session import HANDED_OUT, Session, StreamState, rows_of_local_files, stream_config
from icestream.verbs import in_python, python_words
from services.config.root import Config
from services.trainer.checks import fates_of
from services.trainer.environment import RankPlace, device_of, place_from
from services.trainer.position import StreamPosition, start_of
from services.trainer.units import FedBatch
from workloads.base.batch import Batch, Microbatch
from workloads.base.device import device_named

logger = logging.getLogger(__name__)


class RaggedBatch:
    """Events with different numbers of particles each: columns of all events, of all particles, and offsets.

    Event ``e`` owns the particles ``offsets[e]`` to ``offsets[e + 1]``.
    """

    def __init__(
        self,
        batch: Batch,
        schema: EventSchema,
        epoch: int,
        after: StreamState,
        *,
        device: torch.device,
        is_last: bool = False,
    ) -> None:
        """``device``: where the batch's tensors are; those of a batch without microbatches are made there."""
        self._content = batch
        self._schema = schema
        self._device = device
        self.epoch = epoch
        """Number of the pass over the files, from 0."""
        self.after = after
        """Place of the stream after this batch: see EventStream.state_dict."""
        self.is_last = is_last
        """True for the last batch of a loop: the end of an epoch, or of ``limit`` events."""
        self.was_read = False
        """True once anything of its events was asked for."""

    @property
    def _batch(self) -> Batch:
        self.was_read = True
        return self._content

    @property
    def microbatches(self) -> Sequence[Microbatch]:
        """Parts of the batch within the limits of `stream.max_particles`, in order: for networks that would need too
        much memory for the whole batch."""
        return self._batch.microbatches

    @cached_property
    def events(self) -> Mapping[str, Tensor]:
        """Columns with a row for each event, by name: (E, F)."""
        return self._columns("event")

    @cached_property
    def particles(self) -> Mapping[str, Tensor]:
        """Columns with a row for each particle, by name: (P, F)."""
        return self._columns("particle")

    @cached_property
    def offsets(self) -> Tensor:
        """First particle of each event, and the number of particles: (E + 1,) int64."""
        parts = self.microbatches
        if len(parts) == 1:
            return parts[0].offsets_E1
        counts = [part.offsets_E1.diff() for part in parts] or [torch.zeros(0, dtype=torch.int64, device=self._device)]
        return torch.nn.functional.pad(torch.cat(counts).cumsum(0), (1, 0))

    @property
    def counts(self) -> Tensor:
        """Number of particles of each event: (E,) int64."""
        return self.offsets.diff()

    @property
    def event_of_particle(self) -> Tensor:
        """Number of the event, from 0, that each particle belongs to: (P,) int64."""
        events = torch.arange(self.num_events, device=self.offsets.device)
        return torch.repeat_interleave(events, self.counts, output_size=self.num_particles)

    @property
    def set_of_event(self) -> Tensor:
        """Number of the set, from 0 and in the order of ``weights``, that each event is drawn from: (E,) int64."""
        parts = [torch.full((part.num_events,), part.shard) for part in self.microbatches]
        return torch.cat(parts or [torch.zeros(0, dtype=torch.int64)]).to(self.device)

    @property
    def num_events(self) -> int:
        """Events of this batch, on this rank."""
        return self._batch.num_events

    @property
    def num_particles(self) -> int:
        """Particles of this batch, on this rank."""
        return self._batch.num_particles

    @property
    def total_events(self) -> int:
        """Events of all ranks in the same step: the divisor of a mean over the whole batch."""
        return self._batch.total_events

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return self.offsets.device

    @property
    def fields(self) -> dict[str, tuple[str, ...]]:
        """Names of the fields of each column, in order, with their units."""
        return {column.name: column.fields for column in self._schema.columns}

    def nested(self, name: str | None = None) -> Tensor:
        """Return a nested tensor of a particle column in torch's jagged layout: (E, ragged, F).

        ``name`` may be left out where there is one particle column. No copy.
        """
        names = list(self.particles)
        if name is None and len(names) == 1:
            name = names[0]
        if name not in names:
            raise BadInputError(f"nested({name!r}): name one of the particle columns, {', '.join(map(repr, names))}")
        log = logging.getLogger("torch.fx._symbolic_trace")
        log.addFilter(_is_no_notice)  # torch's own call makes torch print, once, what its developers should do
        try:
            return torch.nested.nested_tensor_from_jagged(self.particles[name], self.offsets)
        finally:
            log.removeFilter(_is_no_notice)

    def awkward(self) -> Any:
        """Return an Awkward array of records, an entry for each event.

        Event columns are records of their fields, particle columns lists of such records. On the CPU; needs
        `pip install -c constraints.txt '.[awkward]'`.
        """
        events, particles = (
            {name: column.cpu().numpy() for name, column in columns.items()}
            for columns in (self.events, self.particles)
        )
        return awkward_events(self._schema, self.offsets.cpu().numpy(), events, particles)

    def to(
        self,
        device: torch.device | str | torch.dtype | None = None,
        *,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> Self:
        """Return a copy on another device, or with floats of another type; the batch itself if it is so already."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        place = self.device if device is None else torch.device(device)
        parts = self.microbatches
        if self.device != place:
            parts = tuple(part.to(place, non_blocking=non_blocking) for part in parts)
        if dtype is not None and any(one.is_floating_point() and one.dtype != dtype for _, one in self.items()):
            parts = tuple(part.with_floats(dtype) for part in parts)
        if parts is self.microbatches:
            return self
        batch = self._batch.with_microbatches(parts)
        return type(self)(batch, self._schema, self.epoch, self.after, device=place, is_last=self.is_last)

    def keys(self) -> tuple[str, ...]:
        """Return the names of all columns: `batch["muons"]` is one, `dict(batch)` all of them."""
        return tuple(column.name for column in self._schema.columns)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each column with its name."""
        return ((name, self[name]) for name in self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __getitem__(self, name: str) -> Tensor:
        if name in self.events:
            return self.events[name]
        if name in self.particles:
            return self.particles[name]
        raise KeyError(f"no column {name!r}; there are {', '.join(self.keys())}")

    def __len__(self) -> int:
        return self.num_events

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} ({', '.join(fields)})" for name, fields in self.fields.items())
        return (
            f"<RaggedBatch: {self.num_events:,} events, {self.num_particles:,} particles, epoch {self.epoch}, on"
            f" {self.device}: {columns}>"
        )

    def _columns(self, per: Per) -> dict[str, Tensor]:
        return {column.name: self._merged(per, column.name) for column in self._schema.columns_per(per)}

    def _merged(self, per: Per, name: str) -> Tensor:
        parts = [(part.event_columns if per == "event" else part.particle_columns)[name] for part in self.microbatches]
        if not parts:  # a rank without data while others have some
            column = self._schema.column(name)
            dtype = getattr(torch, np.dtype(column.dtype).name)
            parts = [torch.empty((0, len(column.fields)), dtype=dtype, device=self._device)]
        # torch can't compare, sort or add unsigned integers of more than 8 bits.
        parts = [part.view(torch.int64) if part.dtype == torch.uint64 else part for part in parts]
        parts = [part.to(torch.int64) if part.dtype in (torch.uint16, torch.uint32) else part for part in parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _no_collation(batch: Any, **_: object) -> None:
    raise BadInputError("a stream makes its batches itself: use DataLoader(stream, batch_size=None)")


default_collate_fn_map[RaggedBatch] = _no_collation


def _is_no_notice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("is_fx_tracing will return true")


_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")


def _names_other_arguments(function: Callable[_Arguments, _Returned]) -> Callable[_Arguments, _Returned]:
    """Wrap a function whose unknown arguments are answered with the known ones."""
    names = [name for name in inspect.signature(function).parameters]

    @wraps(function)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Returned:
        for name in kwargs.keys() - names:
            near = [OTHER_NAMES[name]] if name in OTHER_NAMES else difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise BadInputError(f"{function.__name__}() has no argument {name}; {hint}")
        return function(*args, **kwargs)

    return checked


@_names_other_arguments
def stream(
    inputs: Paths | None = None,
    *,
    decoders: int | Literal["auto"] | None = None,
    batch_events: int | None = None,
    device: str | torch.device = "auto",
    seed: int | None = None,
    shuffle: bool | None = None,
    where: str | None = None,
    part: Literal["train", "held_out", "all"] | None = None,
    extra: Sequence[str] | Mapping[str, str] | None = None,
    transform: str | Callable[..., Any] | None = None,
    weights: Mapping[str, float] | None = None,
    limit: int | None = None,
    drop_last: bool = False,
    restart: bool = False,
    workload: str | None = None,
    run_dir: str | PathLike[str] | None = None,
    config: str | PathLike[str] | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    settings: Mapping[str, object] | None = None,
) -> EventStream:
    """Return a stream of batches from files, for a training loop of one's own.

    The order is a function of the files, the seed and the stream's settings alone: the same, to the bit, for any number
    of decoders, and after any restart that continues from EventStream.state_dict().

    Args:
        inputs: files, directories, globs or URLs: one, or any iterable of them, which is read once.
        decoders: number of decoder processes, or "auto": as many as the load needs. Default 2.
        batch_events: events of a batch, over all ranks: at least so many, as microbatches are not cut again, and
            fewer at the end of an epoch. Default: see `icestream config stream.batch_events`.
        device: device of the tensors; "auto": CUDA where there is a device. With several ranks each takes its own GPU.
        seed: seed of the order. Default 0.
        shuffle: False keeps the order of the files. Default True.
        where: condition on events, such as "primary.energy_gev > 1e6 and muons.count >= 5".
        part: events by `stream.held_out`: "train" (default), "held_out" or "all".
        extra: further columns of the files, by name, or with their types: {"weight": "float64"}.
        transform: function of a module that the decoders call on each unit, or "package.module:function".
        weights: inputs, in the place of ``inputs``, and the part of each batch that is drawn from each (as
            `stream.weights`): numbers above 0 in any unit. An epoch ends once each set was read; smaller ones are read
            again meanwhile.
        limit: events after which a loop ends; the next one goes on from there.
        drop_last: True leaves out the last events of an epoch that fill no batch. On one rank each batch then has
            exactly ``batch_events``.
        restart: True begins each loop with the same first batch: for validation.
        workload: content of the files: "muons", "direction", …; default: detected from their columns.
        run_dir: folder that keeps the list of the files, the cache of remote files and the logs. Default: a temporary
            one, deleted at the end.
        config: TOML file with settings.
        columns: names that the files give to the workload's columns, as `source.columns`:
            {"NAME": "other_name", "LIST": ["first", "second", "third"]}.
        settings: any other setting by its key, for example {"stream.max_particles_per_event": 1000}.

    Raises BadInputError for wrong settings; what is wrong with the files is raised with the first batch.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise BadInputError(f"limit = {limit!r}: expected a whole number of events, of at least 1")
    if isinstance(extra, str):
        extra = [extra]
    if extra is not None and not isinstance(extra, Sequence | Mapping):
        raise BadInputError(f"extra = {extra!r}: expected names of columns, or a mapping to their types")
    place = place_from(os.environ)
    folder = given_path(run_dir, "run_dir") if run_dir is not None else None
    flags: dict[str, object] = {
        "local.decoders": decoders,
        "stream.batch_events": batch_events,
        "stream.shuffle": shuffle,
        "stream.where": where,
        "stream.part": part,
        "stream.transform": _name_of(transform) if callable(transform) else transform,
        "seed": seed,
        "workload": workload,
        "source.columns": columns,
        "source.extra": extra if extra is None or isinstance(extra, Mapping) else list(extra),
    }
    name = str(device)
    if place is not None:
        name = device_of(name, place, torch.cuda.device_count())
    ways = Ways(device_named(name, f"device = {name!r}"), place, limit or 0, drop_last, restart)
    if weights is not None:
        if inputs is not None:
            raise BadInputError("inputs and weights are given: the keys of weights are the inputs")
        if not isinstance(weights, Mapping):
            raise BadInputError(f"weights = {weights!r}: expected a mapping of inputs to numbers")
        inputs, flags["stream.weights"] = list(weights), list(weights.values())
    with python_words():
        resolved = stream_config(inputs, run_dir=folder, config=config, settings=settings or {}, flags=flags)
    return EventStream(resolved, folder, ways)


def _name_of(function: Callable[..., Any]) -> str:
    """Name by which a decoder can import a function. Raises BadInputError."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if module == "__main__" or not name.isidentifier():
        raise BadInputError(
            f"transform = {function!r}: the decoders are processes of their own, which import it: define it with `def`"
            " in a module (a file beside yours), not in a function, a notebook or the main script"
        )
    return f"{module}:{name}"


@dataclass(frozen=True)
class Ways:
    """The ways of looping over a stream, on which its order does not depend."""

    device: torch.device
    place: RankPlace | None
    """Place of this process among several ranks; None: it is alone."""
    limit: int
    """Events of a loop; 0: those of an epoch."""
    drop_last: bool
    restart: bool


class _Rest(NamedTuple):
    """The rest of a batch of the feed, whose first events went into an earlier batch."""

    microbatches: tuple[Microbatch, ...]
    before: StreamPosition
    """Position of the stream before that batch."""
    skip: int
    """Events of it that are gone."""
    after: StreamPosition

    @property
    def num_events(self) -> int:
        """Events left."""
        return sum(part.num_events for part in self.microbatches)

    def cut(self, events: int) -> tuple[tuple[Microbatch, ...], Self]:
        """Return the first events, and the rest."""
        first, second, wanted = [], [], events
        for part in self.microbatches:
            num = min(part.num_events, wanted)
            first += [part.part(0, num)] if 0 < num < part.num_events else [part] * (num > 0)
            second += [part.part(num, part.num_events)] if 0 < num < part.num_events else [part] * (num == 0)
            wanted -= num
        return tuple(first), self._replace(microbatches=tuple(second), skip=self.skip + events)


class _Next(NamedTuple):
    """A batch that is to be handed out, and the place behind it."""

    batch: Batch
    position: StreamPosition
    skip: int = 0


class EventStream(IterableDataset[RaggedBatch]):
    """Batches of one set of files. Each `for` loop goes to the end of the current epoch.

    A loop that was left by `break` or an error is continued by the next one: no event is lost or repeated. As a context
    manager it stops its processes at the end of the block; else they stop with close(), or with the caller's process.
    It is an IterableDataset: `DataLoader(stream, batch_size=None)` gives the same batches.
    """

    def __init__(self, config: Config, run_dir: Path | None, ways: Ways) -> None:
        self._config = config
        self._ways = ways
        self._state = self._start = StreamState(start_of(config.stream), 0)
        self._schema = config.stored_workload()
        self._session = Session(config, self._schema, ways.device, run_dir, ways.place)
        self._source: Generator[FedBatch | None] | None = None
        self._fed_to = self._state.position
        """Position behind what the source has given."""
        self._rest: _Rest | None = None
        self._held: _Next | None = None
        """Batch behind the last one that was handed out: one is held back to know which is the last of an epoch."""
        self._end = self._state.position
        """Position behind the newest epoch that ended."""
        self._whole_epochs = 0, 0
        """Number of whole epochs, and their events, at the newest end of an epoch."""
        self._loop = object()
        """The newest loop that has begun: any other one is over."""
        self._loaded_over: StreamState | None = None
        """State that a loader saved together with the newest loaded one, which is of fewer batches; None once a batch
        was handed out."""
        self._first_after: tuple[RaggedBatch, Mapping[str, Any]] | None = None
        """First batch after a state with ``after``, and that state; None before it, and once the second one is here."""
        self._loaded: Mapping[str, Any] | None = None
        """State with ``after`` that was loaded; None once a batch was handed out."""
        self._promised = 0
        """Batches of a loop by the newest answer of len(); 0: nobody asked."""
        self.ends_are_watched = False
        """True if an icestream.lightning.StreamCallback tells Lightning which batch is the last."""
        self._warned = ""
        self._in_use = threading.Lock()
        weakref.finalize(self, self._session.close)

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next batch belongs to, from 0: those before it are complete."""
        return self._state.epoch

    @property
    def run_dir(self) -> Path | None:
        """Folder of this stream; None while there is no temporary one."""
        return self._session.run_dir

    @property
    def config(self) -> Config:
        """All settings."""
        return self._config

    @property
    def fields(self) -> dict[str, tuple[str, ...]]:
        """Names of the fields of each column of its batches, with their units."""
        return {column.name: column.fields for column in self._schema.columns}

    @cached_property
    def num_events(self) -> int | None:
        """Events of an epoch before any is left out, by the files' footers; None for files that aren't local Parquet,
        before the first epoch is through. All footers are read the first time."""
        found = self._events_of_shards
        return None if None in found else sum(events or 0 for events in found)

    @cached_property
    def _events_of_shards(self) -> list[int | None]:
        shards = range(self._config.stream.shards) if self._config.stream.is_mixed else range(1)
        with python_words():
            return [rows_of_local_files(self._config.of_shard(shard)) for shard in shards]

    def __len__(self) -> int:
        """Return the batches of an epoch: at most so many, since outliers, filtered and invalid events fill none, and
        batches may be larger. Nearer once an epoch was read. Raises TypeError while num_events is unknown."""
        epochs, trained = self._whole_epochs
        stream = self._config.stream
        share = 1.0 if stream.part == "all" else stream.held_out
        share = 1.0 - share if stream.part == "train" else share
        if epochs:
            batches = self._batches_of(trained / epochs, stream.batch_events)
        elif self.num_events is None:
            raise TypeError(
                "the number of events of files that are not local Parquet is unknown before the first epoch"
            )
        else:  # the share of a hash is not exact
            batches, parts = 0, [weight / math.fsum(stream.weights) for weight in stream.weights] or [1.0]
            for events, part in zip((events or 0 for events in self._events_of_shards), parts, strict=True):
                most = min(math.ceil(events * share + 5 * math.sqrt(events * share * (1 - share))), events)
                batches = max(batches, self._batches_of(most, stream.batch_events * part) + stream.is_mixed)
        limit = self._ways.limit
        self._promised = min(batches, -(-limit // stream.batch_events)) if limit else batches
        return self._promised

    def _batches_of(self, events: float, of_batch: float) -> int:
        return int(events // of_batch) if self._ways.drop_last else math.ceil(events / of_batch)

    def __bool__(self) -> bool:
        return True  # else it would be asked for its length

    def __repr__(self) -> str:
        handed_out = self.counters.events_trained
        return (
            f"<{type(self).__name__}: {counted(len(self._config.input), 'input')}, batches of"
            f" {self._config.stream.batch_events:,} events, epoch {self.epoch}, {handed_out:,} events handed out:"
            f" {', '.join(self.fields)}>"
        )

    @property
    def counters(self) -> Counters:
        """Outcome of every event so far: trained (handed out), outlier, empty, held out, filtered, invalid,
        quarantined. Those that ``drop_last`` left out are not among them: `left_out` is their number."""
        counted, more = self._state.position.counters, self._state.skip - self._state.left_out
        events = {"events_read": counted.events_read + more, "events_trained": counted.events_trained + more}
        return counted.model_copy(update=events)

    @property
    def left_out(self) -> int:
        """Events that ``drop_last`` left out at the ends of epochs so far."""
        return self._state.left_out

    @property
    def counters_of_sets(self) -> dict[str, Counters]:
        """Outcome of the events of each set, by its input, of which some may be left out by ``drop_last``; empty
        without ``weights``."""
        if not self._config.stream.is_mixed:
            return {}
        return dict(zip(self._config.input, (one.counters for one in self._state.position.shards), strict=True))

    @property
    def set_aside(self) -> tuple[str, ...]:
        """A line for each file or row group that was quarantined, and for each rule that invalid events break."""
        position = self._state.position
        return (*position.set_aside, *(f"invalid: {line}" for line in lines_of_rules(position.broken_rules)))

    def state_dict(self, after: RaggedBatch | None = None) -> dict[str, Any]:
        """Return the state after all batches that were handed out, or after ``after``, to be saved with the weights.

        ``after`` is for loops that fetch batches ahead (Lightning does): only the caller knows which it has trained on.
        The state after the last batch of an epoch is the start of the next epoch.
        """
        if after is None:
            return self._state.saved(self._config)
        return after.after.saved(self._config) | {HANDED_OUT: self._state.saved(self._config)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state. Raises BadInputError if it is of another stream: other settings or another version.

        That the files are the same is checked with the first batch. A state with ``after`` is not replaced by the one
        that a loader saved at the same time: Lightning loads this later, and it is of the batches fetched ahead, too.
        """
        state = StreamState.read(state_dict, self._config)
        if state == self._loaded_over:
            return
        if state.skip and not self._cuts:
            raise BadInputError("the state is of batches that were cut by drop_last, on one rank: continue it likewise")
        handed_out = state_dict.get(HANDED_OUT)
        self._loaded_over = StreamState.read(handed_out, self._config) if handed_out is not None else None
        self._loaded = state_dict if handed_out is not None else None
        self._first_after = None
        self._go_to(state)

    def __iter__(self) -> Iterator[RaggedBatch]:
        if get_worker_info() is not None:
            raise BadInputError(
                "a stream was given to a DataLoader with workers: use num_workers=0; its decoders are the workers"
                " (icestream.stream(decoders=...))"
            )
        is_whole = self._state.of_loop == 0 and not self._ways.restart
        batch = self._next(begins=True)
        self._loop = this = object()  # not before: the first batch may have been refused, as another thread reads
        num_batches = 1
        yield batch
        while not batch.is_last:
            if self._loop is not this:
                raise BadInputError(
                    "another loop over this stream has begun since, and goes on where this one was: leave a loop before"
                    " the next one, and give loops side by side a stream each"
                )
            batch = self._next()
            num_batches += 1
            yield batch
        has_lightning = "lightning" in sys.modules or "pytorch_lightning" in sys.modules
        if has_lightning and is_whole and num_batches < self._promised and not self.ends_are_watched:
            self._promised = 0  # once is enough
            logger.warning(
                "this loop had %d batches, and len(stream) promised more: Lightning doesn't notice its end, and may"
                " leave out a validation: add icestream.lightning.StreamCallback(stream) to the trainer's callbacks",
                num_batches,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the fetcher and the decoders. The stream may be used again: it then continues, with new processes."""
        self._forget()
        self._session.close()

    def __getstate__(self) -> None:
        raise BadInputError("a stream can't be copied to another process; make it there, or use num_workers=0")

    def _forget(self) -> None:
        """Drop what was fetched and not handed out: it is fetched again."""
        self._source = self._held = self._rest = None

    def _go_to(self, state: StreamState) -> None:
        self._state = state
        self._forget()
        self._session.leave()

    @python_words()
    def _next(self, *, begins: bool = False) -> RaggedBatch:
        """Return the next batch. Raises BadInputError while another thread waits for one."""
        if not self._in_use.acquire(blocking=False):
            raise BadInputError("another thread reads this stream: give each thread a stream of its own")
        try:
            if begins and self._ways.restart and self._state != self._start:
                self._go_to(self._start)
            if begins and self._first_after is not None and not self._first_after[0].was_read:
                # Lightning fetches it, and drops it for a new loop, where it resumes behind an epoch's last validation.
                self.load_state_dict(self._first_after[1])
            return self._following()
        finally:
            self._in_use.release()

    def _following(self) -> RaggedBatch:
        """Return the next batch, once it is known whether it is the last one of its epoch."""
        try:
            batch = self._held or self._fetched() or self._first_of_next_epoch()
            self._held = batch  # until the next one is here: an error loses none
            following = self._fetched()
            epoch, self._held, ends = self._state.epoch, following, following is None
            of_loop = self._state.of_loop + batch.batch.total_events
            is_last = ends or 0 < self._ways.limit <= of_loop
            position, next_epoch, skip, left_out = batch.position, epoch, batch.skip, self._state.left_out
            if ends:
                left_out += self._end.counters.events_trained - position.counters.events_trained - skip
                position, skip = self._end, 0
                self._whole_epochs = epoch + 1, position.counters.events_trained
                next_epoch = max(epoch + 1, position.epoch)  # a batch may hold several passes over all sets
            self._state = StreamState(position, next_epoch, skip, 0 if is_last else of_loop, left_out)
        except BaseException:  # what was fetched and not handed out is fetched again
            self._forget()
            self._session.leave()
            raise
        ragged = RaggedBatch(batch.batch, self._schema, epoch, self._state, device=self._ways.device, is_last=is_last)
        self._first_after = None if self._loaded is None else (ragged, self._loaded)
        self._loaded = self._loaded_over = None
        return ragged

    def _first_of_next_epoch(self) -> _Next:
        """Return the first batch of the epoch after one that has no batch left, as behind a state of older versions."""
        self._state = StreamState(self._end, self._state.epoch + 1, left_out=self._state.left_out)
        batch = self._fetched() if self.counters.events_trained else None
        if batch is None:
            if self._ways.drop_last and self.counters.events_trained:
                few = f"{self.counters.events_trained:,} events fill no batch of {self._config.stream.batch_events:,}"
                raise BadInputError(f"{few}, and drop_last leaves them out: lower batch_events")
            told = f"all {self.counters.events_read:,} events of this epoch are left out ({fates_of(self.counters)})"
            raise BadInputError(f"{told}: look at stream.set_aside")
        return batch

    @property
    def _cuts(self) -> bool:
        """True if batches are cut at exactly `batch_events`."""
        return self._ways.drop_last and self._ways.place is None

    def _fetched(self) -> _Next | None:
        """Return the batch behind the one that is held back, or else behind the state; None at the end of the epoch."""
        wanted = self._config.stream.batch_events
        if not self._cuts:
            fed = self._fed()
            while fed is not None and self._ways.drop_last and fed.batch.total_events < wanted:
                fed = self._fed()
            return None if fed is None else _Next(fed.batch, fed.position)
        parts: tuple[Microbatch, ...] = ()
        num_events = 0
        while True:
            if self._rest is None:
                begins, before = self._source is None, self._fed_to
                fed = self._fed()
                if fed is None:
                    return None
                before = self._state.position if begins else before
                self._rest = _Rest(tuple(fed.batch.microbatches), before, 0, fed.position)
                if begins:
                    self._rest = self._rest.cut(self._state.skip)[1]
            taken, rest = self._rest.cut(min(wanted - num_events, self._rest.num_events))
            parts += taken
            num_events += sum(part.num_events for part in taken)
            self._rest = rest if rest.num_events else None
            if num_events == wanted:
                return _Next(Batch(parts), *((rest.before, rest.skip) if self._rest else (rest.after, 0)))

    def _fed(self) -> FedBatch | None:
        """Return the next batch as the feed makes it; None at the end of the epoch."""
        feed, services = self._session.joined()
        services.begin_wait()
        source = self._source or feed.stream(self._state.position, self._state.epoch)
        self._source = None  # until it is known that it can go on: an error or Ctrl-C ends a generator
        try:
            for fed in source:
                if feed.outside_values and not self._warned:
                    self._warned = in_python(feed.outside_values)
                    logger.warning("%s", self._warned)
                if feed.agreement.take_commit_request():  # what the feed gave may be evicted: it can be fetched again
                    feed.committed(self._held.position if self._held else self._state.position)
                if fed is not None:
                    self._source, self._fed_to = source, fed.position
                    return fed
        except StopRequested:
            pass
        except BaseException:
            self._forget()
            self._session.leave()
            raise
        if not feed.epoch_ended:
            self._forget()
            raise BadInputError(services.end_reason)
        self._end = feed.position
        return None
