"""Status of running services, their small files in the run directory, and the numbers that a run reports."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from common.atomic_file import replace_file
from common.paths import open_in_run, shard_dirs
from common.process import Rarely

OUTLIER_FOLDER = "outliers"
INVALID_FOLDER = "invalid"
HOPS = ("staged", "leases", "slots", "batches")
"""Hops of the data flow: staging to planner, dispatcher to decoders, decoders to trainer, feed to training step.
services/fetcher/monitor.py and services/trainer/units.py define the measurements."""
STALL_REASONS = ("no_free_slot", "no_credit", "not_staged")
"""Reasons that the dispatcher could not lease: the trainer, the decoders or the staging is the bottleneck."""


class Status(BaseModel):
    """Base of the status files."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Hop(Status):
    """Queue between two stages: waiting times of producer and consumer, and occupancy."""

    wait_put_s: float = 0.0
    """Seconds that the producer waited because the queue was full."""
    wait_get_s: float = 0.0
    """Seconds that the consumer waited because the queue was empty."""
    wait_put_share: float = 0.0
    """Producer's waiting time as a part (0 to 1) of the last seconds."""
    wait_get_share: float = 0.0
    """Consumer's waiting time as a part (0 to 1) of the last seconds."""
    occupancy: float = 0.0
    """Mean occupancy of the queue (0 to 1) over the last seconds. Near 1 the consumer is the bottleneck."""


class TimeShares(Status):
    """Shares (0 to 1) of a span of time that was spent in each of several waits."""

    seconds: float = 0.0
    """Length of the span: at most about an hour, less after a start."""
    shares: dict[str, float] = {}


class FetcherStatus(Status):
    """Status of the fetcher and its dispatcher; times are seconds since the fetcher started."""

    state: Literal["listing", "waiting for a trainer", "streaming", "finished"] = "listing"
    pid: int = 0
    uptime_s: float = 0.0
    """Time since the fetcher started."""
    files_total: int = 0
    """Files of the known inventory, times the epochs (0 epochs: of one)."""
    epochs: int = 0
    """Times that the inventory is read. 0: without end."""
    is_of_set: bool = False
    """True if the inventory is that of one set of several (`stream.weights`)."""
    ranges: int = 0
    """Ranges of the inputs."""
    ranges_listed: int = 0
    listed: str = ""
    """Progress of the listing."""
    received_bytes: int = 0
    """Bytes received from federations since the fetcher started."""
    received_bytes_per_s: float = 0.0
    transfers: int = 0
    """Running transfers from federations."""
    token_expires_s: float | None = None
    """Time (seconds since 1970) at which the first of the federations' tokens in use expires; None: none is known."""
    listing: str = ""
    """Range that is being listed; empty if none is."""
    problem: str = ""
    """Problem that stops the fetcher's progress, with the remedy; empty if there is none."""
    files_planned: int = 0
    """Files whose units are known, over all epochs so far."""
    files_bad: int = 0
    """Distinct files that are quarantined, whole or in part."""
    bytes_staged: int = 0
    """Bytes of remote files on local disk."""
    events_planned: int = 0
    """Events of the planned files."""
    units_planned: int = 0
    units_leased: int = 0
    units_ready: int = 0
    units_delivered: int = 0
    """Units delivered and not yet released."""
    slots: int = 0
    """Slots of the arena."""
    slots_free: int = 0
    arena_bytes: int = 0
    decoders: int = 0
    """Decoders that have joined the run."""
    decoder_pids: tuple[int, ...] = ()
    """Process ids of the decoders, in the order in which they joined; 0 for one in another container."""
    decoders_wanted: int = 0
    """Decoders requested by local.decoders = "auto". 0: their number is set by the user."""
    decoders_lost: int = 0
    """Decoders that died or were fenced."""
    events_decoded: int = 0
    """Events in finished units, including units decoded again."""
    events_decoded_per_s: float = 0.0
    """Events decoded per second, over the last seconds."""
    stalled_s: dict[str, float] = {}
    """Seconds in which the dispatcher could not lease, by reason (STALL_REASONS)."""
    stall_shares: dict[str, float] = {}
    """Stalled time by reason, as parts (0 to 1) of the last seconds (common.status.WINDOW_S)."""
    last_hour: TimeShares = TimeShares()
    """Stalled time by reason over the last hour."""
    bottleneck: Literal["none", "trainer", "decoders", "staging"] = "none"
    """Bottleneck, from the stalls of the last seconds."""
    hops: dict[str, Hop] = {}
    """Hops by name: staged, leases, slots."""
    batches_occupancy: float = 0.0
    """Mean occupancy of the hop `batches` over the last seconds: units at the trainer, as a part of those requested."""


class RunStatus(Status):
    """Status of `icestream run`, written at each change of its processes and at its end."""

    state: Literal["running", "stopping", "finished", "interrupted", "failed"] = "running"
    pid: int = 0
    """Process id of `icestream run`."""
    started_s: float = 0.0
    """Start of this session, in seconds since 1970."""
    changed_s: float = 0.0
    """Time of this status, in seconds since 1970: of the end, if it has ended."""
    processes: dict[str, int] = {}
    """Process ids of the living services by name: fetcher, trainer, trainer-1, decoder-0, …"""
    restarts: dict[str, int] = {}
    """Restarts in this session, by service."""
    exit_code: int | None = None
    """Exit code; None until the end."""
    error: str = ""
    """Reason of a failure."""


class OutputsStatus(Status):
    """Status of the copies of checkpoints and TensorBoard files."""

    files_copied: int = 0
    """Files copied since the process started; a file that grew counts each time."""
    bytes_copied: int = 0
    problem: str = ""
    """Reason of the last attempt's failure; empty if it succeeded."""


class EventCounts(Status):
    """Events by their fate, over all restarts of a run: `read` is the sum of the other seven (promise 3)."""

    events_read: int = 0
    events_trained: int = 0
    events_outlier: int = 0
    events_empty: int = 0
    events_quarantined: int = 0
    events_held_out: int = 0
    """Events held out of training by `stream.held_out`."""
    events_filtered: int = 0
    """Events that don't fulfil `stream.where`."""
    events_invalid: int = 0
    """Events set aside one by one because of their values."""
    particles_trained: int = 0
    particles_dropped: int = 0
    """Particles of zero energy, which converters write for events without particles."""


class Counters(EventCounts):
    """Counts of a trainer."""

    units: int = 0
    """Units trained."""
    microbatches: int = 0
    """Microbatches trained."""

    def adds_up(self) -> bool:
        """True if every event read has exactly one fate."""
        return self.events_read == sum(events_by_fate(self).values())


def events_by_fate(counts: EventCounts) -> dict[str, int]:
    """Events by fate, in words: of all that were read."""
    names = [name for name in EventCounts.model_fields if name.startswith("events_") and name != "events_read"]
    return {name.removeprefix("events_").replace("_", " "): getattr(counts, name) for name in names}


class GpuStatus(Status):
    """Use of a trainer's GPU up to the newest log step; None: not measured."""

    utilisation: float | None = None
    """Part (0 to 1) of the time in which a kernel ran, however little of the GPU it used."""
    memory_utilisation: float | None = None
    """Part (0 to 1) of the time in which the GPU's memory was read or written."""
    memory_share: float | None = None
    """Used part (0 to 1) of the GPU's memory, all its processes included."""
    allocated_mean_bytes: int | None = None
    """Mean memory in the trainer's tensors between two log steps."""
    allocated_max_bytes: int | None = None
    """Largest memory in the trainer's tensors so far."""
    reserved_bytes: int | None = None
    """Memory that the trainer holds, free for its own tensors or in use."""


class TrainerStatus(Status):
    """Status of the trainer; counters and seconds cover all restarts."""

    state: Literal["starting", "training", "finished", "stopped"] = "starting"
    pid: int = 0
    device: str = ""
    step: int = 0
    """Optimiser steps made."""
    max_steps: int = 0
    """Step at which the training ends. 0: no limit."""
    epoch: int = 0
    """Current epoch, from 0."""
    epochs: int = 0
    """Passes over the inputs. 0: without end."""
    seconds: float = 0.0
    """Training time."""
    counters: Counters = Counters()
    shards: tuple[Counters, ...] = ()
    """Counters of each shard since the plan began; empty in a run without shards."""
    events_per_s: float = 0.0
    """Events trained per second, over the last seconds."""
    particles_per_s: float = 0.0
    session_events_per_s: float = 0.0
    """Events per second trained by this process since its first steps."""
    batches_per_s: float = 0.0
    """Optimiser steps per second, waiting included, over the last seconds."""
    s_per_batch: float = 0.0
    """Seconds per optimiser step, over the last seconds; 0 while there is no step."""
    wait_fraction: float = 0.0
    """Part of the last seconds that the trainer waited for data."""
    copied_bytes_per_s: float = 0.0
    """Bytes of training data copied to the device per second, over the last seconds."""
    batches: Hop = Hop()
    """Hop `batches`; its occupancy is reported by the fetcher."""
    last_hour: TimeShares = TimeShares()
    """Waiting of the hop `batches` over the last hour: `get`, the step waited for data; `put`, data waited for it."""
    losses: dict[str, float] = {}
    """Newest metrics selected by the model, by name; `NAME_ma_500`: mean of the last 500 steps."""
    checkpoint: str = ""
    """Newest checkpoint, relative to the run directory."""
    checkpoint_step: int = 0
    gpu: GpuStatus | None = None
    """Use of the GPU; None: there is none."""
    warnings: tuple[str, ...] = ()
    """Warnings about the settings of the model, and about values that can't be."""
    health: str = "healthy"
    """Health of the newest steps: healthy, warning or critical."""
    health_reason: str = ""
    """Reason of the newest warning or rollback."""
    rollbacks: int = 0
    """Number of rollbacks to a good checkpoint since the last recovery."""
    quarantined: list[str] = []
    """One line for each of the newest quarantined files, row groups or units: name and reason."""
    num_quarantined: int = 0
    """Number of all quarantined files, row groups and units; the fetcher's log and the checkpoint list them."""
    invalid: list[str] = []
    """One line for each rule that invalid events break: their number, the rule, examples."""


_STATES = ("listing", "waiting for a trainer", "streaming", "finished")
_SUMS = (
    *("received_bytes", "received_bytes_per_s", "transfers", "files_planned", "files_bad", "bytes_staged"),
    *("events_planned", "units_planned", "units_leased", "units_ready", "units_delivered", "slots", "slots_free"),
    *("arena_bytes", "decoders", "decoder_pids", "decoders_wanted", "decoders_lost", "events_decoded"),
    "events_decoded_per_s",
)


def fetchers_together(fetchers: Sequence[FetcherStatus]) -> FetcherStatus | None:
    """Sums of numbers and times, means of shares, and the first of each text; None for none of them.

    But for those of sets, all know the same inventory: `files_total` and `epochs` are those of the run.
    """
    if len(fetchers) < 2:
        return fetchers[0] if fetchers else None
    first = fetchers[0]
    expiries = [one.token_expires_s for one in fetchers if one.token_expires_s is not None]
    sums = {name: sum((getattr(one, name) for one in fetchers), type(getattr(first, name))()) for name in _SUMS}
    texts = {
        name: next((text for one in fetchers if (text := getattr(one, name))), "")
        for name in ("listing", "listed", "problem")
    }
    bottlenecks = Counter(one.bottleneck for one in fetchers if one.bottleneck != "none")
    return first.model_copy(
        update={
            **sums,
            **texts,
            # A fetcher that lists or waits holds all others up.
            "state": next(state for state in _STATES if state in {one.state for one in fetchers}),
            "uptime_s": max(one.uptime_s for one in fetchers),
            "files_total": (sum if first.is_of_set else max)(one.files_total for one in fetchers),
            "ranges_listed": min(one.ranges_listed for one in fetchers),
            "token_expires_s": min(expiries, default=None),
            "stalled_s": _sums(one.stalled_s for one in fetchers),
            "stall_shares": _means([one.stall_shares for one in fetchers]),
            "last_hour": TimeShares(
                seconds=max(one.last_hour.seconds for one in fetchers),
                shares=_means([one.last_hour.shares for one in fetchers]),
            ),
            "bottleneck": bottlenecks.most_common(1)[0][0] if bottlenecks else "none",
            "hops": {name: _hop([one.hops[name] for one in fetchers if name in one.hops]) for name in first.hops},
            "batches_occupancy": sum(one.batches_occupancy for one in fetchers) / len(fetchers),
        }
    )


def _sums(numbers: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in numbers:
        for name, number in one.items():
            total[name] = total.get(name, 0.0) + number
    return total


def _means(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: number / len(numbers) for name, number in _sums(numbers).items()}


def _hop(hops: Sequence[Hop]) -> Hop:
    times = {name: sum(getattr(one, name) for one in hops) for name in ("wait_put_s", "wait_get_s")}
    shares = ("wait_put_share", "wait_get_share", "occupancy")
    return Hop(**times, **{name: sum(getattr(one, name) for one in hops) / len(hops) for name in shares})


STATUS_FOLDER = "status"
StatusType = TypeVar("StatusType", bound=Status)

_reserve: list[int] = []
_reserve_lock = threading.Lock()
os.register_at_fork(after_in_child=_reserve.clear)  # a child may have closed it, or opened a file under its number
_not_written = Rarely(logging.getLogger(__name__))


def write_status(run_dir: Path, name: str, status: Status) -> None:
    """Replace the status file of the service ``name``. An error of the machine doesn't end the service.

    Two descriptors are kept in reserve, so that a service without free descriptors can still report it.
    """
    path = run_dir / STATUS_FOLDER / f"{name}.json"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _reserve_lock:
        while _reserve:
            os.close(_reserve.pop())
        try:
            replace_file(path, status.model_dump_json(), durable=False)
        except OSError as error:
            _not_written.log("%s: can't be written (%s); it shows the former status", path, error.strerror)
        with contextlib.suppress(OSError):
            while len(_reserve) < 2:  # the file is opened twice: see replacing()
                _reserve.append(os.open(os.devnull, os.O_RDONLY))


def read_status(run_dir: Path, name: str, kind: type[StatusType]) -> StatusType | None:
    """Newest status of the service ``name``; None before its first. Raises OSError, BadInputError."""
    try:
        with open_in_run(run_dir / STATUS_FOLDER / f"{name}.json") as file:
            return kind.model_validate_json(file.read())
    except (FileNotFoundError, ValidationError):
        return None


def read_fetchers(run_dir: Path) -> FetcherStatus | None:
    """Newest status of a run's fetcher; with shards, of the fetchers of all of them together. As read_status()."""
    found = [read_status(folder, "fetcher", FetcherStatus) for folder in shard_dirs(run_dir)]
    return fetchers_together([status for status in found if status is not None])


WINDOW_S = 5.0
HOUR_S = 3600.0
_MINUTE_S = 60.0


class Rate:
    """Growth rate of a counter over the last WINDOW_S seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def update(self, now_s: float, value: float) -> float:
        """Record the counter and return its growth per second, 0 before the second sample."""
        self._samples.append((now_s, value))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - WINDOW_S:
            self._samples.popleft()
        first_s, first = self._samples[0]
        return (value - first) / (now_s - first_s) if now_s > first_s else 0.0


class Shares:
    """Share of each of several named waits in the last seconds."""

    def __init__(self) -> None:
        self._rates: dict[str, Rate] = {}

    def update(self, now_s: float, seconds: Mapping[str, float]) -> dict[str, float]:
        """Record the seconds waited so far, by name, and return each as a part (0 to 1) of the last seconds."""
        return {name: self._rates.setdefault(name, Rate()).update(now_s, value) for name, value in seconds.items()}


class LastHour:
    """Share of each of several named waits in the last hour, from a sample a minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, float]]] = deque()

    def update(self, now_s: float, seconds: Mapping[str, float]) -> TimeShares:
        """Shares up to now, from the seconds waited so far, by name."""
        if not self._samples or now_s - self._samples[-1][0] >= _MINUTE_S:
            self._samples.append((now_s, dict(seconds)))
        while len(self._samples) > 1 and self._samples[1][0] <= now_s - HOUR_S:
            self._samples.popleft()
        first_s, first = self._samples[0]
        span_s = now_s - first_s
        if span_s <= 0.0:
            return TimeShares()
        shares = {name: (value - first.get(name, 0.0)) / span_s for name, value in seconds.items()}
        return TimeShares(seconds=span_s, shares={name: min(max(share, 0.0), 1.0) for name, share in shares.items()})


class HopMeter:
    """Sums of the three numbers of a hop (common.status.Hop), from spans of time in which nothing changed."""

    def __init__(self) -> None:
        self._wait_put_s = self._wait_get_s = self._filled_s = 0.0
        self._shares = Shares()

    def add(self, span_s: float, *, put: float = 0.0, get: float = 0.0, occupancy: float = 0.0) -> None:
        """Add a span of ``span_s`` seconds in which a part ``put`` of the producers waited, a part ``get`` of the
        consumers, and the queue between them was filled to ``occupancy``; each is 0 to 1."""
        self._wait_put_s += span_s * put
        self._wait_get_s += span_s * get
        self._filled_s += span_s * occupancy

    def hop(self, now_s: float) -> Hop:
        """Hop since the start, and over the last seconds."""
        waited = {"put": self._wait_put_s, "get": self._wait_get_s, "filled": self._filled_s}
        shares = {name: min(share, 1.0) for name, share in self._shares.update(now_s, waited).items()}
        return Hop(
            wait_put_s=self._wait_put_s,
            wait_get_s=self._wait_get_s,
            wait_put_share=shares["put"],
            wait_get_share=shares["get"],
            occupancy=shares["filled"],
        )


_STALLS = {
    "no_free_slot": "no slot was free: the trainer is the bottleneck",
    "no_credit": "no decoder could take a unit: the decoders are the bottleneck",
    "not_staged": "no unit was planned: the staging is the bottleneck",
}
_NO_MEASUREMENT = ("pid", "batches_occupancy")
_WAITS = ("wait_put_s", "wait_get_s", "wait_put_share", "wait_get_share")
_COUNTERS = frozenset(
    {
        *("decoders_lost", "events_decoded", "files_planned", "events_planned", "units_planned"),
        *("events_read", "events_trained", "events_outlier", "events_empty", "events_quarantined"),
        *("events_held_out", "events_filtered", "events_invalid"),
        *("particles_trained", "particles_dropped", "units", "microbatches", "step", "seconds", "num_quarantined"),
        *("wait_put_s", "wait_get_s", "received_bytes"),
    }
)
"""Counters: fields that only grow, except at a restart."""


@dataclass(frozen=True)
class Measurement:
    """Reported number. A counter only grows, except at a restart; any other number is a gauge."""

    name: str
    value: float
    meaning: str
    is_counter: bool = False


def measurements(fetcher: FetcherStatus | None, trainer: TrainerStatus | None) -> list[Measurement]:
    """Current numbers of the services; none of a service without a status."""
    found: list[Measurement] = []
    if fetcher is not None:
        found += _numbers("fetcher", fetcher)
        for name, hop in fetcher.hops.items():
            found += _numbers(f"hop/{name}", hop)
        for reason in STALL_REASONS:
            seconds, share = fetcher.stalled_s.get(reason, 0.0), fetcher.stall_shares.get(reason, 0.0)
            in_which = f"in which {_STALLS[reason]}."
            found.append(Measurement(f"stall/{reason}_s", seconds, f"Seconds {in_which}", is_counter=True))
            found.append(Measurement(f"stall/{reason}_share", share, f"Part of the last seconds (0 to 1) {in_which}"))
        found += _numbers("hop/batches", Hop(occupancy=fetcher.batches_occupancy), {"occupancy"})
    if trainer is not None:
        found += _numbers("hop/batches", trainer.batches, _WAITS)
        found += [*_numbers("trainer", trainer), *_numbers("trainer", trainer.counters)]
        if trainer.gpu is not None:
            found += _numbers("trainer", trainer.gpu, of="gpu_")
        found += [Measurement(f"train/{loss}", value, "Newest value.") for loss, value in trainer.losses.items()]
    return found


def values(fetcher: FetcherStatus | None, trainer: TrainerStatus | None) -> dict[str, float]:
    """Measurements as values by name."""
    return {measurement.name: measurement.value for measurement in measurements(fetcher, trainer)}


def _numbers(prefix: str, status: Status, only: Collection[str] = (), of: str = "") -> Iterator[Measurement]:
    for name, field in type(status).model_fields.items():
        value = getattr(status, name)
        if isinstance(value, int | float) and name not in _NO_MEASUREMENT and (not only or name in only):
            meaning = " ".join((field.description or name.replace("_", " ").capitalize() + ".").split())
            yield Measurement(f"{prefix}/{of}{name}", float(value), meaning, name in _COUNTERS)
