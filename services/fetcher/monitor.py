"""Monitoring of the fetcher: stalls, hops and rates, the status, and the number of decoders wanted."""

from __future__ import annotations

import os
from typing import Literal

from common.files.remotes import Remotes
from common.metrics import LastHour, Rate, Shares
from common.status import FetcherStatus
from services.config.root import Config
from services.fetcher.dispatcher import Dispatcher, State
from services.fetcher.hops import Hops, Queues
from services.fetcher.inventory.inventory import Inventory
from services.fetcher.inventory.ledger import Ledger
from services.fetcher.inventory.range_listing import RangeListing
from services.fetcher.planner import Planner
from services.fetcher.scaling import DecoderScaling, Load

_BOTTLENECKS = {"no_free_slot": "trainer", "no_credit": "decoders", "not_staged": "staging"}


class Monitor:
    """Monitor of the fetcher's parts, which changes none of them. ``started_s``: start of the process."""

    def __init__(
        self,
        config: Config,
        started_s: float,
        *,
        dispatcher: Dispatcher,
        inventory: Inventory,
        ledger: Ledger,
        listing: RangeListing,
        planner: Planner,
        remotes: Remotes,
        arena_bytes: int,
        listen: str,
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._inventory = inventory
        self._ledger = ledger
        self._listing = listing
        self._planner = planner
        self._remotes = remotes
        self._arena_bytes = arena_bytes
        self._listen = listen
        self._started_s = started_s
        self.listed = ""
        """Progress of the listing, set in another thread."""
        self._decoded = Rate()
        self._received = Rate()
        self._stalls = Shares()
        self._last_hour = LastHour()
        self._hops = Hops()
        self._scaling = DecoderScaling(_most_decoders(config)) if config.local.decoders == "auto" else None

    def tick(self, now_s: float, current_block: int) -> None:
        """Measure the hops; nothing before a trainer has sent its cursor."""
        dispatcher = self._dispatcher
        queues = None
        if dispatcher.attached_once:
            queues = Queues(
                stall=dispatcher.stall,
                staging_full=self._planner.ahead.is_full,
                staged=self._planner.ahead.part_ahead(current_block),
                decoders=dispatcher.decoders.num_staying,
                decoders_busy=dispatcher.decoders.num_busy,
                slots=dispatcher.units.slots,
                slots_filled=dispatcher.units.num(State.READY) + dispatcher.units.num(State.DELIVERED),
                trainer_waits=dispatcher.trainer_waits,
                prefetched=dispatcher.prefetched,
            )
        self._hops.tick(now_s, queues)

    def status(self, now_s: float, *, ended: bool) -> FetcherStatus:
        """Content of the status file; rates and shares are those since the former call."""
        dispatcher, units = self._dispatcher, self._dispatcher.units
        stalls = self._stalls.update(now_s, dispatcher.stalled_s)
        hops, batches_occupancy = self._hops.status(now_s)
        wanted = self._decoders_wanted(now_s, stalls["no_credit"], hops["leases"].wait_get_share)
        worst = max(stalls, key=lambda reason: stalls[reason], default=None)
        return FetcherStatus(
            state=self._state(ended),
            pid=os.getpid(),
            listen=self._listen,
            uptime_s=now_s - self._started_s,
            files_total=self._inventory.num_files * (self._config.epochs or 1),
            epochs=self._config.epochs,
            ranges=len(self._inventory.ranges),
            ranges_listed=self._inventory.num_known,
            listing=self._listing.listing,
            problem=self._listing.problem or self._planner.pool.problem or dispatcher.problem,
            listed=self.listed,
            received_bytes=self._remotes.bytes_received,
            received_bytes_per_s=self._received.update(now_s, self._remotes.bytes_received),
            transfers=self._remotes.running,
            token_expires_s=self._remotes.token_expires_s,
            files_planned=self._planner.files_planned,
            files_bad=self._ledger.num_bad_files(),
            bytes_staged=self._planner.ahead.bytes_held,
            events_planned=self._planner.events_planned,
            units_planned=units.next_k,
            units_leased=units.num(State.LEASED),
            units_ready=units.num(State.READY),
            units_delivered=units.num(State.DELIVERED),
            slots=units.slots,
            slots_free=len(units.free),
            arena_bytes=self._arena_bytes,
            decoders=len(dispatcher.decoders),
            decoder_pids=tuple(int(peer.partition("-")[0]) for peer in dispatcher.decoders.names),
            decoders_wanted=wanted,
            decoders_lost=dispatcher.counts["decoders_lost"],
            events_decoded=dispatcher.counts["events_decoded"],
            events_decoded_per_s=self._decoded.update(now_s, dispatcher.counts["events_decoded"]),
            stalled_s=dict(dispatcher.stalled_s),
            stall_shares=stalls,
            last_hour=self._last_hour.update(now_s, dispatcher.stalled_s),
            bottleneck=_BOTTLENECKS[worst] if worst is not None and stalls[worst] > 0.1 else "none",
            hops=hops,
            batches_occupancy=batches_occupancy,
        )

    def _decoders_wanted(self, now_s: float, no_credit: float, idle: float) -> int:
        """Number of decoders wanted; 0 if the user sets it."""
        if self._scaling is None:
            return 0
        num_staying = self._dispatcher.decoders.num_staying
        return self._scaling.update(now_s, Load(num_staying, no_credit, idle) if self._dispatcher.trainers else None)

    def _state(self, ended: bool) -> Literal["listing", "waiting for a trainer", "streaming", "finished"]:
        if ended:
            return "finished"
        if not self._inventory.num_known:
            return "listing"
        return "streaming" if self._dispatcher.trainers else "waiting for a trainer"


def _most_decoders(config: Config) -> int:
    """Most decoders for local.decoders = "auto". A decoder without a slot of its own would have nothing to do."""
    cores = len(os.sched_getaffinity(0)) - 1  # one is left to the fetcher and the trainer
    most = config.local.max_decoders or max(1, cores // config.decoder.threads)
    return min(most, config.stream.slots)
