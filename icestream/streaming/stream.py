"""`icestream.stream`: batches of ragged events in the caller's own training loop."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch.utils.data import IterableDataset, get_worker_info

from common.errors import BadInputError
from common.invalid_events import lines_of_rules
from common.python_paths import Paths, given_path
from common.status import Counters
from common.transport import StopRequested
from icestream.streaming.batch import RaggedBatch
from icestream.streaming.python_words import in_python, python_words
from icestream.streaming.session import Session
from icestream.streaming.settings import HANDED_OUT, StreamState, stream_config
from services.config.root import Config
from services.trainer.ranks.rank_place import RankPlace, device_of, place_from
from services.trainer.stream.fed_batch import FedBatch
from services.trainer.stream.position import StreamPosition
from workloads.base.device import device_named

logger = logging.getLogger(__name__)


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
    """Stream of batches from files, for a training loop of one's own.

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
        found = stream_config(inputs, run_dir=folder, config=config, settings=settings or {}, flags=flags)
    name = str(device)
    if place is not None:
        name = device_of(name, place, torch.cuda.device_count())
    return EventStream(found, device_named(name, f"device = {name!r}"), folder, place)


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
        """State after all batches that were handed out, or after batch ``after``: numbers and texts, to be saved with
        the weights.

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        found = RaggedBatch(
            batch.batch, self._schema, epoch, self._state.position, device=self._device, is_last=is_last
        )
        self._first_after = None if self._loaded is None else (found, self._loaded)
        self._loaded = self._loaded_over = None
        return found

    def _first_of_next_epoch(self) -> FedBatch:
        """Return the first batch of the epoch after one that has no batch left, as behind a state of older versions."""
        self._state = StreamState(self._end, self._state.epoch + 1)
        batch = self._fetched() if self.counters.events_trained else None
        if batch is None:
            raise BadInputError(_nothing_left(self.counters))
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
                if feed.take_commit_request():  # what the feed gave may be evicted: it can be fetched again
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


def _nothing_left(counters: Counters) -> str:
    fates = {
        "outliers": counters.events_outlier,
        "empty": counters.events_empty,
        "held out": counters.events_held_out,
        "invalid": counters.events_invalid,
        "quarantined": counters.events_quarantined,
    }
    counted = ", ".join(f"{number:,} {fate}" for fate, number in fates.items() if number)
    return f"all {counters.events_read:,} events of this epoch are left out ({counted}): look at stream.set_aside"
