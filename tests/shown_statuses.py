"""Statuses of the services of a run, as the tests of its display show them."""

from __future__ import annotations

from common.status import Counters, FetcherStatus, Hop, TrainerStatus

FETCHER = FetcherStatus(
    state="streaming",
    pid=11,
    uptime_s=60.0,
    files_total=40,
    epochs=1,
    files_planned=10,
    events_planned=5000,
    slots=8,
    slots_free=3,
    units_ready=2,
    decoders=2,
    events_decoded_per_s=1234.0,
)
TRAINER = TrainerStatus(
    state="training",
    pid=12,
    device="cpu",
    step=10,
    epochs=1,
    seconds=20.0,
    counters=Counters(events_read=2000, events_trained=1600, events_outlier=400),
    events_per_s=80.0,
    particles_per_s=9000.0,
    batches=Hop(wait_put_share=0.8),
    losses={"c_loss": -1.25},
)
