"""Status of running services: their content (status_files.py has the files). Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

OUTLIER_FOLDER = "outliers"
INVALID_FOLDER = "invalid"
HOPS = ("staged", "leases", "slots", "batches")
"""Hops of the data flow: staging to planner, dispatcher to decoders, decoders to trainer, feed to training step.
services/fetcher/hops.py and services/trainer/stream/waits.py define the measurements."""
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
    listen: str = ""
    """Address for trainers on other machines, with the bound port; empty if there is none."""
    uptime_s: float = 0.0
    """Time since the fetcher started."""
    files_total: int = 0
    """Files of the known inventory, times the epochs (0 epochs: of one)."""
    epochs: int = 0
    """Times that the inventory is read. 0: without end."""
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
    """Stalled time by reason, as parts (0 to 1) of the last seconds (common.metrics.WINDOW_S)."""
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


class Counters(Status):
    """Events by their fate, over all restarts of a run: `read` is the sum of the other six (promise 3)."""

    events_read: int = 0
    events_trained: int = 0
    events_outlier: int = 0
    events_empty: int = 0
    events_quarantined: int = 0
    events_held_out: int = 0
    """Events held out of training by `stream.held_out`."""
    events_invalid: int = 0
    """Events set aside one by one because of their values."""
    particles_trained: int = 0
    particles_dropped: int = 0
    """Particles of zero energy, which converters write for events without particles."""
    units: int = 0
    """Units trained."""
    microbatches: int = 0
    """Microbatches trained."""

    def adds_up(self) -> bool:
        """True if every event read has exactly one fate."""
        return self.events_read == (
            self.events_trained
            + self.events_outlier
            + self.events_empty
            + self.events_quarantined
            + self.events_held_out
            + self.events_invalid
        )


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
    replay_events_per_s: float = 0.0
    """Replay ceiling: events per second of the same steps without feed, logging and checkpoints. 0: not measured."""
    batches_per_s: float = 0.0
    """Optimiser steps per second, waiting included, over the last seconds."""
    s_per_batch: float = 0.0
    """Seconds per optimiser step, over the last seconds; 0 while there is no step."""
    wait_fraction: float = 0.0
    """Part of the last seconds that the trainer waited for data."""
    copied_bytes_per_s: float = 0.0
    """Bytes of training data copied to the device per second, over the last seconds."""
    flops_per_s: float | None = None
    """Floating-point operations of the step's matrix products per second, over the last seconds; None: not counted."""
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
