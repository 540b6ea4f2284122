"""What a service tells about itself while it runs: small JSON files in the run directory, replaced atomically.

Whoever wants to watch a run (the progress view, a person, a monitor) reads them; no service waits for a reader.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from common.atomic_file import replace_file
from common.rarely import Rarely

STATUS_FOLDER = "status"
OUTLIER_FOLDER = "outliers"
HOPS = ("staged", "leases", "slots", "batches")
"""The hops with data flowing: staging to planner, dispatcher to decoders, decoders to trainer, feed to training step.
services/fetcher/hops.py and services/trainer/stream/waits.py say what each measures."""
STALL_REASONS = ("no_free_slot", "no_credit", "not_staged")
"""Why the dispatcher could not lease: the trainer, the decoders or the staging is the bottleneck."""


class Status(BaseModel):
    """Base of the status files."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Hop(Status):
    """A queue between two stages: who waited for whom, and how full it was."""

    wait_put_s: float = 0.0
    """Seconds that the producer was kept waiting because the consumer had not made room."""
    wait_get_s: float = 0.0
    """Seconds that the consumer waited because nothing was there."""
    wait_put_share: float = 0.0
    """The producer's waiting as a part (0 to 1) of the last seconds."""
    wait_get_share: float = 0.0
    """The consumer's waiting as a part (0 to 1) of the last seconds."""
    occupancy: float = 0.0
    """How full the queue was (0 to 1), in the mean of the last seconds. Near 1 the consumer is the bottleneck."""


class FetcherStatus(Status):
    """The fetcher and its dispatcher; times are seconds since the fetcher started."""

    state: Literal["listing", "waiting for a trainer", "streaming", "finished"] = "listing"
    pid: int = 0
    listen: str = ""
    """Address for trainers on other machines, with the port that was bound; empty if there is none."""
    uptime_s: float = 0.0
    files_total: int = 0
    """Files of the known inventory, times the epochs (0 epochs: of one)."""
    ranges: int = 0
    ranges_listed: int = 0
    listed: str = ""
    """How far the listing is."""
    received_bytes: int = 0
    """From federations, since the fetcher started."""
    received_bytes_per_s: float = 0.0
    transfers: int = 0
    """Transfers from federations under way."""
    listing: str = ""
    """Range that is being listed; empty if none is."""
    problem: str = ""
    """What keeps the fetcher from going on, and what to do; empty if nothing does."""
    files_planned: int = 0
    """Files whose units are known, over all epochs so far."""
    files_bad: int = 0
    """Distinct files that are quarantined, whole or in part."""
    bytes_staged: int = 0
    """Remote files on local disk now."""
    events_planned: int = 0
    """Events of the planned files."""
    units_planned: int = 0
    units_leased: int = 0
    units_ready: int = 0
    units_delivered: int = 0
    """Delivered and not yet released."""
    slots: int = 0
    slots_free: int = 0
    arena_bytes: int = 0
    decoders: int = 0
    decoder_pids: tuple[int, ...] = ()
    """Process ids of the decoders, in the order in which they joined; 0 for one in another container."""
    decoders_wanted: int = 0
    """Decoders that local.decoders = "auto" asks for. 0: their number is the user's."""
    decoders_lost: int = 0
    """Decoders that died or were fenced."""
    events_decoded: int = 0
    """Events in finished units, decoded again ones included."""
    events_decoded_per_s: float = 0.0
    """Over the last seconds."""
    stalled_s: dict[str, float] = {}
    """Seconds in which the dispatcher could not lease, by reason (STALL_REASONS)."""
    stall_shares: dict[str, float] = {}
    """The same as parts (0 to 1) of the last seconds (common.metrics.WINDOW_S)."""
    bottleneck: Literal["none", "trainer", "decoders", "staging"] = "none"
    """Read off the stalls of the last seconds."""
    hops: dict[str, Hop] = {}
    """By name: staged, leases, slots."""
    batches_occupancy: float = 0.0
    """Of the hop `batches`: units at the trainer, as a part of those it asked for, in the mean of the last seconds."""


class OutputsStatus(Status):
    """Copies of checkpoints and TensorBoard files."""

    files_copied: int = 0
    """Since the process started; a file that grew counts each time."""
    bytes_copied: int = 0
    problem: str = ""
    """Why the last try failed; empty if it did not."""


class Counters(Status):
    """Events by their fate, over all restarts of a run: `read` is the sum of the other four (promise 3)."""

    events_read: int = 0
    events_trained: int = 0
    events_outlier: int = 0
    events_empty: int = 0
    events_quarantined: int = 0
    particles_trained: int = 0
    particles_dropped: int = 0
    """Particles of zero energy, which a converter writes for an event without any."""
    units: int = 0
    microbatches: int = 0

    def adds_up(self) -> bool:
        """True if every event that was read has exactly one fate."""
        return self.events_read == (
            self.events_trained + self.events_outlier + self.events_empty + self.events_quarantined
        )


class TrainerStatus(Status):
    """The trainer; counters and seconds cover all restarts."""

    state: Literal["starting", "training", "finished", "stopped"] = "starting"
    pid: int = 0
    device: str = ""
    step: int = 0
    max_steps: int = 0
    epoch: int = 0
    """Counted from 0."""
    epochs: int = 0
    seconds: float = 0.0
    counters: Counters = Counters()
    events_per_s: float = 0.0
    """Over the last seconds."""
    particles_per_s: float = 0.0
    session_events_per_s: float = 0.0
    """Events trained by this process, over the time since its first steps."""
    replay_events_per_s: float = 0.0
    """The replay ceiling: events a second of the same steps without feed, logging and checkpoints. 0: not measured."""
    batches_per_s: float = 0.0
    """Optimiser steps in a second, waiting and all, over the last seconds."""
    s_per_batch: float = 0.0
    """Its inverse; 0 while there is no step."""
    wait_fraction: float = 0.0
    """Part of the last seconds that the trainer waited for data."""
    batches: Hop = Hop()
    """The hop `batches`; its occupancy is the fetcher's to tell."""
    losses: dict[str, float] = {}
    """Newest metrics that the model has chosen for it, by name; `NAME_ma_500`: mean of the last 500 steps."""
    checkpoint: str = ""
    """Newest checkpoint, relative to the run directory."""
    checkpoint_step: int = 0
    health: str = "healthy"
    """healthy, warning or critical, as the newest steps were judged."""
    health_reason: str = ""
    """Of the newest warning, or of going back the last time."""
    rollbacks: int = 0
    """Times that training went back to a good checkpoint, since it had last recovered."""
    quarantined: list[str] = []
    """One line for each of the newest quarantined files, row groups or units: which, and why."""
    num_quarantined: int = 0
    """Of all that are quarantined; the fetcher's log and the checkpoint name each."""


StatusType = TypeVar("StatusType", bound=Status)

_reserve: list[int] = []
_reserve_lock = threading.Lock()
_not_written = Rarely(logging.getLogger(__name__))


def write_status(run_dir: Path, name: str, status: Status) -> None:
    """Replace the status file of the service ``name``. What the machine refuses ends no service: the next one comes.

    A descriptor is kept in reserve, so that a service which has none left can still say so.
    """
    path = run_dir / STATUS_FOLDER / f"{name}.json"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _reserve_lock:
        while _reserve:
            os.close(_reserve.pop())
        try:
            replace_file(path, status.model_dump_json(), durable=False)
        except OSError as error:
            _not_written.log("%s: can't be written (%s); it shows what was", path, error.strerror)
        with contextlib.suppress(OSError):
            _reserve.append(os.open(os.devnull, os.O_RDONLY))


def read_status(run_dir: Path, name: str, kind: type[StatusType]) -> StatusType | None:
    """The newest status of the service ``name``; None before its first."""
    try:
        return kind.model_validate_json((run_dir / STATUS_FOLDER / f"{name}.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
