"""`icestream.stream`: batches of ragged events in the caller's own training loop.

Shape suffixes: E events, P particles, F fields of a column.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from common.errors import BadInputError
from common.invalid_events import lines_of_rules
from common.options import Paths, given_path
from common.schema import EventSchema, Per
from common.status import Counters
from common.transport import StopRequested
from common.unit_arrays import awkward_events
from icestream.stream_session import HANDED_OUT, Session, StreamState, stream_config
from icestream.verbs import in_python, python_words
from services.config.root import Config
from services.trainer.checks import fates_of
from services.trainer.environment import RankPlace, device_of, place_from
from services.trainer.position import StreamPosition
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
        position: StreamPosition,
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
        self.position = position
        """Position of the stream after this batch: see EventStream.state_dict."""
        self.is_last = is_last
        """True for the last batch of an epoch."""
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

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Copy of the batch on another device; the batch itself if it is there."""
        device = torch.device(device)
        if self.device == device:
            return self
        batch = self._batch.with_microbatches(
            tuple(part.to(device, non_blocking=non_blocking) for part in self.microbatches)
        )
        return type(self)(batch, self._schema, self.epoch, self.position, device=device, is_last=self.is_last)

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
            return torch.empty((0, len(column.fields)), dtype=dtype, device=self._device)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _is_no_notice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("is_fx_tracing will return true")


def stream(
    inputs: Paths | None = None,
    *,
    decoders: int | Literal["auto"] | None = None,
    batch_events: int | None = None,
    device: str | torch.device = "auto",
    seed: int | None = None,
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
        workload: content of the files: "muons", "direction", …; default: detected from their columns.
        run_dir: folder that keeps the list of the files, the cache of remote files and the logs. Default: a temporary
            one, deleted at the end.
        config: TOML file with settings.
        columns: names that the files give to the workload's columns, as `source.columns`:
            {"NAME": "other_name", "LIST": ["first", "second", "third"]}.
        settings: any other setting by its key, for example {"stream.max_particles_per_event": 1000}.

    Raises BadInputError for wrong settings; what is wrong with the files is raised with the first batch.
    """
    place = place_from(os.environ)
    folder = given_path(run_dir, "run_dir") if run_dir is not None else None
    flags: dict[str, object] = {
        "local.decoders": decoders,
        "stream.batch_events": batch_events,
        "seed": seed,
        "workload": workload,
        "source.columns": columns,
    }
    with python_words():
        resolved = stream_config(inputs, run_dir=folder, config=config, settings=settings or {}, flags=flags)
    name = str(device)
    if place is not None:
        name = device_of(name, place, torch.cuda.device_count())
    return EventStream(resolved, device_named(name, f"device = {name!r}"), folder, place)


class EventStream(IterableDataset[RaggedBatch]):
    """Batches of one set of files. Each `for` loop goes to the end of the current epoch.

    A loop that was left by `break` or an error is continued by the next one: no event is lost or repeated. As a context
    manager it stops its processes at the end of the block; else they stop with close(), or with the caller's process.
    It is an IterableDataset: `DataLoader(stream, batch_size=None)` gives the same batches.
    """

    def __init__(self, config: Config, device: torch.device, run_dir: Path | None, place: RankPlace | None) -> None:
        self._config = config
        self._state = StreamState(StreamPosition(), 0)
        self._schema = config.stored_workload()
        self._device = device
        self._session = Session(config, self._schema, device, run_dir, place)
        self._source: Generator[FedBatch | None] | None = None
        self._held: FedBatch | None = None
        """Batch behind the last one that was handed out: one is held back to know which is the last of an epoch."""
        self._end = self._state.position
        """Position behind the newest epoch that ended."""
        self._loop = object()
        """The newest loop that has begun: any other one is over."""
        self._loaded_over: StreamState | None = None
        """State that a loader saved together with the newest loaded one, which is of fewer batches; None once a batch
        was handed out."""
        self._first_after: tuple[RaggedBatch, Mapping[str, Any]] | None = None
        """First batch after a state with ``after``, and that state; None before it, and once the second one is here."""
        self._loaded: Mapping[str, Any] | None = None
        """State with ``after`` that was loaded; None once a batch was handed out."""
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
    def counters(self) -> Counters:
        """Outcome of every event so far: trained (handed out), outlier, empty, held out, invalid, quarantined."""
        return self._state.position.counters

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
        exact = StreamState(after.position, after.epoch + after.is_last).saved(self._config)
        return exact | {HANDED_OUT: self._state.saved(self._config)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state. Raises BadInputError if it is of another stream: other settings or another version.

        That the files are the same is checked with the first batch. A state with ``after`` is not replaced by the one
        that a loader saved at the same time: Lightning loads this later, and it is of the batches fetched ahead, too.
        """
        state = StreamState.read(state_dict, self._config)
        if state == self._loaded_over:
            return
        handed_out = state_dict.get(HANDED_OUT)
        self._loaded_over = StreamState.read(handed_out, self._config) if handed_out is not None else None
        self._loaded = state_dict if handed_out is not None else None
        self._first_after = None
        self._state = state
        self._forget()
        self._session.leave()

    def __iter__(self) -> Iterator[RaggedBatch]:
        if get_worker_info() is not None:
            raise BadInputError(
                "a stream was given to a DataLoader with workers: use num_workers=0; its decoders are the workers"
                " (icestream.stream(decoders=...))"
            )
        batch = self._next(begins=True)
        self._loop = this = object()  # not before: the first batch may have been refused, as another thread reads
        yield batch
        while not batch.is_last:
            if self._loop is not this:
                raise BadInputError(
                    "another loop over this stream has begun since, and goes on where this one was: leave a loop before"
                    " the next one, and give loops side by side a stream each"
                )
            batch = self._next()
            yield batch

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
        self._source, self._held = None, None

    @python_words()
    def _next(self, *, begins: bool = False) -> RaggedBatch:
        """Return the next batch. Raises BadInputError while another thread waits for one."""
        if not self._in_use.acquire(blocking=False):
            raise BadInputError("another thread reads this stream: give each thread a stream of its own")
        try:
            if begins and self._first_after is not None and not self._first_after[0].was_read:
                # Lightning fetches it, and drops it for a new loop, where it resumes behind an epoch's last validation.
                self.load_state_dict(self._first_after[1])
            return self._following()
        finally:
            self._in_use.release()

    def _following(self) -> RaggedBatch:
        """Return the next batch, once it is known whether it is the last one of its epoch."""
        batch = self._held or self._fetched() or self._first_of_next_epoch()
        self._held = batch  # until the next one is here: an error loses none
        following = self._fetched()
        epoch, self._held, is_last = self._state.epoch, following, following is None
        self._state = StreamState(batch.position if following else self._end, epoch + is_last)
        ragged = RaggedBatch(
            batch.batch, self._schema, epoch, self._state.position, device=self._device, is_last=is_last
        )
        self._first_after = None if self._loaded is None else (ragged, self._loaded)
        self._loaded = self._loaded_over = None
        return ragged

    def _first_of_next_epoch(self) -> FedBatch:
        """Return the first batch of the epoch after one that has no batch left, as behind a state of older versions."""
        self._state = StreamState(self._end, self._state.epoch + 1)
        batch = self._fetched() if self.counters.events_trained else None
        if batch is None:
            told = f"all {self.counters.events_read:,} events of this epoch are left out ({fates_of(self.counters)})"
            raise BadInputError(f"{told}: look at stream.set_aside")
        return batch

    def _fetched(self) -> FedBatch | None:
        """Return the batch behind the one that is held back, or else behind the state; None at the end of the epoch."""
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
                    self._source = source
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
