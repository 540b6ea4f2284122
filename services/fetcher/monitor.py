"""Monitoring of the fetcher: hops, rates and stalls, the number of decoders wanted, Prometheus metrics of the run."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from common import status as statuses
from common.errors import BadInputError
from common.files.remotes import Remotes
from common.run_words import STAGES
from services.config.root import Config
from services.fetcher.dispatcher import Dispatcher
from services.fetcher.dispatcher_state import State
from services.fetcher.inventory import Inventory, RangeListing
from services.fetcher.ledger import Ledger
from services.fetcher.planner import Planner
from services.fetcher.staging import StageAhead

logger = logging.getLogger(__name__)


HopStates: TypeAlias = Mapping[str, Mapping[str, float]]
"""Of each hop: the parts (0 to 1) of its producers and consumers that wait, and its occupancy: HopMeter.add()."""


def hop_states(dispatcher: Dispatcher, ahead: StageAhead, current_block: int) -> HopStates:
    """Return the state of each hop at this instant.

    staged   staging -> planner
             put waits while blocks are left and none may be begun: blocks_ahead or the disk budget is used up, and no
             file is in transfer. get waits while the dispatcher stalls as `not_staged`.
             occupancy: planned blocks beyond the current one / fetcher.blocks_ahead.
    leases   dispatcher -> decoders
             put waits while the dispatcher stalls as `no_credit`. get: mean part of the decoders without a lease.
             occupancy: part of the decoders with one.
    slots    decoders -> trainer
             put waits while the dispatcher stalls as `no_free_slot`. get waits while the trainer wants a unit that is
             not ready. occupancy: units ready and delivered / slots.
    batches  feed -> training step
             put and get: services/trainer/units.py. occupancy: units at the trainer / units that it requested.
    """
    stall, units = dispatcher.stall, dispatcher.units
    decoders = dispatcher.decoders.num_staying
    busy = dispatcher.decoders.num_busy / decoders if decoders else 0.0
    filled = (units.num(State.READY) + units.num(State.DELIVERED)) / units.slots
    part_ahead = ahead.part_ahead(current_block)
    return {
        "staged": {"put": ahead.is_full, "get": stall == "not_staged", "occupancy": part_ahead},
        "leases": {"put": stall == "no_credit", "get": 1.0 - busy if decoders else 0.0, "occupancy": busy},
        "slots": {"put": stall == "no_free_slot", "get": dispatcher.trainer_waits, "occupancy": filled},
        "batches": {"occupancy": dispatcher.prefetched},
    }


class Hops:
    """Waiting times at each hop. The state at a tick counts until the next: the fetcher ticks after every event."""

    def __init__(self) -> None:
        self._meters = {name: statuses.HopMeter() for name in ("staged", "leases", "slots", "batches")}
        self._states: HopStates = {}
        self._ticked_s = 0.0

    def tick(self, now_s: float, states: HopStates) -> None:
        """Record the states from now on; empty: nothing flows, because no trainer has attached yet."""
        for name, state in self._states.items():
            self._meters[name].add(now_s - self._ticked_s, **state)
        self._states, self._ticked_s = states, now_s

    def status(self, now_s: float) -> tuple[dict[str, statuses.Hop], float]:
        """Hops of the fetcher by name, and the occupancy of `batches`. To be called regularly."""
        hops = {name: meter.hop(now_s) for name, meter in self._meters.items()}
        return hops, hops.pop("batches").occupancy


# -------------------------------------------------------------- the number of decoders


GROW_ABOVE = 0.5
"""Part of the last seconds in which units waited for a decoder, from which on another decoder helps."""
STEADY_ABOVE = 0.3
"""The same part, below which no more decoders are needed."""
GROW_AFTER_S = 3.0
"""Time for which the need must last."""
SHRINK_ABOVE = 1.25
"""Idle decoders, averaged over time, from which on one can go without a shortage. Above 1, so that the last stays."""
SHRINK_AFTER_S = 20.0
"""Time for which the surplus must last; longer, because a decoder too many costs little."""
COOL_DOWN_S = 6.0
"""Pause after a change: the load of the last seconds (common.status.WINDOW_S) still has the former number."""


@dataclass(frozen=True)
class Load:
    """Load of the decoders in the last seconds."""

    decoders: int
    """Connected decoders, without those that were asked to leave."""
    no_credit: float
    """Part of the time (0 to 1) in which units waited for a decoder."""
    idle: float
    """Mean part (0 to 1) of idle decoders."""


class DecoderScaling:
    """Number of decoders wanted (local.decoders = "auto"): 1 at first, ``most`` at most, except for those that join by
    themselves. One more while units wait for decoders, one fewer while more than one decoder's time is idle.

    The two thresholds are far apart: after a removal the others still have idle time, so the removed decoder is not
    requested again.
    """

    def __init__(self, most: int) -> None:
        self.wanted = 1
        self._most = max(1, most)
        self._grow_since_s = self._shrink_since_s = math.inf
        self._changed_s = -math.inf

    def update(self, now_s: float, load: Load | None) -> int:
        """Return the number of decoders wanted after this load (None: nothing flows)."""
        if load is not None and load.decoders > self.wanted:
            self._change(now_s, load.decoders)  # a decoder started by hand is kept
        if load is None or now_s - self._changed_s < COOL_DOWN_S:
            self._grow_since_s = self._shrink_since_s = math.inf
            return self.wanted
        self._note(now_s, load)
        if now_s - self._grow_since_s >= GROW_AFTER_S and self.wanted < self._most:
            self._change(now_s, self.wanted + 1)
        elif now_s - self._shrink_since_s >= SHRINK_AFTER_S:
            self._change(now_s, self.wanted - 1)
        return self.wanted

    def _note(self, now_s: float, load: Load) -> None:
        idle = load.idle * load.decoders
        missing = max(0, self.wanted - load.decoders)
        if missing or load.no_credit < STEADY_ABOVE or idle >= 1.0:
            # Decoders still to come will change the load; an idle decoder waits for one late unit, as another would.
            self._grow_since_s = math.inf
        elif load.no_credit >= GROW_ABOVE:
            self._grow_since_s = min(self._grow_since_s, now_s)
        if idle + missing < SHRINK_ABOVE or load.no_credit >= STEADY_ABOVE:
            self._shrink_since_s = math.inf
        else:
            self._shrink_since_s = min(self._shrink_since_s, now_s)

    def _change(self, now_s: float, wanted: int) -> None:
        self.wanted, self._changed_s = wanted, now_s
        self._grow_since_s = self._shrink_since_s = math.inf


# -------------------------------------------------------------- the status


@dataclass(kw_only=True)
class Monitor:
    """Monitor of the fetcher's parts, which changes none of them."""

    config: Config
    started_s: float
    """Start of the process."""
    dispatcher: Dispatcher
    inventory: Inventory
    ledger: Ledger
    listing: RangeListing
    planner: Planner
    remotes: Remotes
    arena_bytes: int
    listed: str = ""
    """Progress of the listing, set in another thread."""

    def __post_init__(self) -> None:
        self._decoded = statuses.Rate()
        self._received = statuses.Rate()
        self._stalls = statuses.Shares()
        self._last_hour = statuses.LastHour()
        self._hops = Hops()
        local, cores = self.config.local, len(os.sched_getaffinity(0)) - 1  # one for the fetcher and the trainer
        most = local.max_decoders or max(1, cores // self.config.decoder.threads)
        # A decoder without a slot of its own would have nothing to do.
        self._scaling = DecoderScaling(min(most, self.config.stream.slots)) if local.decoders == "auto" else None

    def tick(self, now_s: float, current_block: int) -> None:
        """Measure the hops; nothing before a trainer has sent its cursor."""
        flows = self.dispatcher.attached_once
        states = hop_states(self.dispatcher, self.planner.ahead, current_block) if flows else {}
        self._hops.tick(now_s, states)

    def status(self, now_s: float, *, ended: bool) -> statuses.FetcherStatus:
        """Return the content of the status file; rates and shares are those since the former call."""
        dispatcher, units = self.dispatcher, self.dispatcher.units
        stalls = self._stalls.update(now_s, dispatcher.stalled_s)
        hops, batches_occupancy = self._hops.status(now_s)
        load = Load(dispatcher.decoders.num_staying, stalls["no_credit"], hops["leases"].wait_get_share)
        flowing = load if dispatcher.trainers else None
        wanted = 0 if self._scaling is None else self._scaling.update(now_s, flowing)  # 0: the user sets it
        worst = max(stalls, key=lambda reason: stalls[reason], default=None)
        return statuses.FetcherStatus(
            state=self._state(ended),
            pid=os.getpid(),
            uptime_s=now_s - self.started_s,
            files_total=self.inventory.num_files * (self.config.epochs or 1),
            epochs=self.config.epochs,
            is_of_set=self.config.stream.is_mixed,
            ranges=len(self.inventory.ranges),
            ranges_listed=self.inventory.num_known,
            listing=self.listing.listing,
            problem=self.listing.problem or self.planner.pool.problem or dispatcher.problem,
            listed=self.listed,
            received_bytes=self.remotes.bytes_received,
            received_bytes_per_s=self._received.update(now_s, self.remotes.bytes_received),
            transfers=self.remotes.running,
            token_expires_s=self.remotes.token_expires_s,
            files_planned=self.planner.files_planned,
            files_bad=self.ledger.num_bad_files(),
            bytes_staged=self.planner.ahead.bytes_held,
            events_planned=self.planner.events_planned,
            units_planned=units.next_k,
            units_leased=units.num(State.LEASED),
            units_ready=units.num(State.READY),
            units_delivered=units.num(State.DELIVERED),
            slots=units.slots,
            slots_free=len(units.free),
            arena_bytes=self.arena_bytes,
            decoders=len(dispatcher.decoders),
            decoder_pids=tuple(int(peer.partition("-")[0]) for peer in dispatcher.decoders.by_name),
            decoders_wanted=wanted,
            decoders_lost=dispatcher.counts["decoders_lost"],
            events_decoded=dispatcher.counts["events_decoded"],
            events_decoded_per_s=self._decoded.update(now_s, dispatcher.counts["events_decoded"]),
            stalled_s=dict(dispatcher.stalled_s),
            stall_shares=stalls,
            last_hour=self._last_hour.update(now_s, dispatcher.stalled_s),
            bottleneck=STAGES[worst] if worst is not None and stalls[worst] > 0.1 else "none",
            hops=hops,
            batches_occupancy=batches_occupancy,
        )

    def _state(self, ended: bool) -> Literal["listing", "waiting for a trainer", "streaming", "finished"]:
        if ended:
            return "finished"
        if not self.inventory.num_known:
            return "listing"
        return "streaming" if self.dispatcher.trainers else "waiting for a trainer"


PREFIX = "icestream_"
HEALTH = ("healthy", "warning", "critical")
_FIELDS = {
    "step": "steps",
    "files_total": "files",
    "num_quarantined": "quarantined",
    "occupancy": "occupancy_ratio",
    "gpu_utilisation": "gpu_utilisation_ratio",
    "gpu_memory_utilisation": "gpu_memory_utilisation_ratio",
    "wait_fraction": "wait_ratio",
    "s_per_batch": "batch_seconds",
    "bytes_staged": "staged_bytes",
    "token_expires_s": "token_expiry_timestamp_seconds",
}
_UNITS = {"_per_s": "_per_second", "_s": "_seconds", "_share": "_ratio"}
_MEANINGS = {
    "stall_seconds": "Time in which no unit could be leased to a decoder, by reason.",
    "stall_ratio": "Part of the last seconds (0 to 1) in which no unit could be leased to a decoder, by reason.",
    "loss": "Newest value of a metric that the model selects for display, by name.",
}


def named(measurement: str) -> tuple[str, dict[str, str]]:
    """Return the name of the family, without prefix and `_total`, and the labels of a measurement."""
    place, *middle, field = measurement.split("/")
    if place == "train":
        return "loss", {"loss": field}
    if place == "stall":
        reason, _, unit = field.rpartition("_")
        return "stall" + _UNITS["_" + unit], {"reason": reason}
    if field in _FIELDS:
        field = _FIELDS[field]
    else:
        ending = next((ending for ending in _UNITS if field.endswith(ending)), "")
        field = field.removesuffix(ending) + _UNITS.get(ending, "")
    return f"{place}_{field}", {"hop": middle[0]} if middle else {}


def state_families(fetcher: statuses.FetcherStatus | None, trainer: statuses.TrainerStatus | None) -> Iterator[Metric]:
    """States of the services: of each family one sample is 1, that of the current state, the others are 0."""
    for status, field, name, meaning in (
        (fetcher, "state", "fetcher_state", "State of the fetcher."),
        (fetcher, "bottleneck", "bottleneck", "Bottleneck of the last seconds."),
        (trainer, "state", "trainer_state", "State of the trainer."),
        (trainer, "health", "trainer_health", "Health of the newest training steps."),
    ):
        if status is not None:
            family = GaugeMetricFamily(PREFIX + name, meaning, labels=["state"])
            for state in get_args(type(status).model_fields[field].annotation) or HEALTH:
                family.add_metric([state], float(state == getattr(status, field)))
            yield family


def gauge(name: str, meaning: str, value: float, **labels: str) -> GaugeMetricFamily:
    """Gauge with one sample."""
    family = GaugeMetricFamily(PREFIX + name, meaning, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), value)
    return family


class StatusCollector(Collector):
    """Collector that reads the status files at each scrape."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def collect(self) -> Iterator[Metric]:
        """All metrics of the run; of a service without a status, none."""
        fetcher = statuses.read_fetchers(self._run_dir)
        trainer = statuses.read_status(self._run_dir, "trainer", statuses.TrainerStatus)
        families: dict[str, Metric] = {}
        for measured in statuses.measurements(fetcher, trainer):
            name, labels = named(measured.name)
            if name not in families:
                kind = CounterMetricFamily if measured.is_counter else GaugeMetricFamily
                families[name] = kind(PREFIX + name, _MEANINGS.get(name, measured.meaning))
            families[name].add_sample(PREFIX + name + "_total" * measured.is_counter, labels, measured.value)
        yield from families.values()
        yield from state_families(fetcher, trainer)
        yield from self._ages(trainer)
        run = statuses.read_status(self._run_dir, "run", statuses.RunStatus)
        if run is not None:  # else something else than the supervisor starts the services
            restarts = CounterMetricFamily(
                PREFIX + "restarts", "Restarts in this session of the run, by service.", labels=["service"]
            )
            for service, count in run.restarts.items():
                restarts.add_metric([service], count)
            yield restarts
        usage = shutil.disk_usage(self._run_dir)
        yield gauge("disk_free_bytes", "Free space of the run directory's file system.", usage.free)
        yield gauge("disk_size_bytes", "Size of the run directory's file system.", usage.total)
        yield gauge("build_info", "Version of icestream; the value is 1.", 1.0, version=version("icestream"))

    def _ages(self, trainer: statuses.TrainerStatus | None) -> Iterator[Metric]:
        meaning = "Time since the newest status of a service; it grows when that is dead."
        age = GaugeMetricFamily(PREFIX + "status_age_seconds", meaning, labels=["service"])
        for service in ("fetcher", "trainer"):
            with contextlib.suppress(FileNotFoundError):
                changed_s = (self._run_dir / statuses.STATUS_FOLDER / f"{service}.json").stat().st_mtime
                age.add_metric([service], max(0.0, time.time() - changed_s))
        yield age
        if trainer is not None and trainer.checkpoint:
            with contextlib.suppress(FileNotFoundError):  # replaced by a newer one a moment ago
                written_s = (self._run_dir / trainer.checkpoint).stat().st_mtime
                yield gauge("checkpoint_timestamp_seconds", "Time of the newest checkpoint, since 1970.", written_s)


class Exporter:
    """HTTP server of one run's metrics on ``host``, until closed; port 0 takes any that is free.

    Raises BadInputError if the address is not available.
    """

    def __init__(self, run_dir: Path, port: int, host: str = "127.0.0.1") -> None:
        registry = CollectorRegistry()
        registry.register(StatusCollector(run_dir))
        ProcessCollector(registry=registry)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise BadInputError(
                f"fetcher.metrics_port = {port}: can't listen on {host}:{port} ({error.strerror}); choose "
                "another port, or 0 for none"
            ) from None
        self.port = self._server.server_port
        logger.info("Prometheus metrics on http://%s:%d/metrics", host, self.port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
