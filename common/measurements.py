"""Names of all numbers that a run reports: the progress view, TensorBoard and Prometheus show the same.

hop/<hop>/wait_put_s wait_get_s wait_put_share wait_get_share occupancy     <hop>: common.status.HOPS
stall/<reason>_s <reason>_share                                             <reason>: common.status.STALL_REASONS
fetcher/<field> trainer/<field>                                             numbers of their status files
train/<loss>                                                                newest losses
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from common.status import STALL_REASONS, FetcherStatus, Hop, Status, TrainerStatus

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
        *("events_held_out", "events_invalid"),
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
            found += _stall(reason, fetcher.stalled_s.get(reason, 0.0), fetcher.stall_shares.get(reason, 0.0))
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


def _stall(reason: str, stalled_s: float, share: float) -> Iterator[Measurement]:
    why = _STALLS[reason]
    yield Measurement(f"stall/{reason}_s", stalled_s, f"Seconds in which {why}.", is_counter=True)
    yield Measurement(f"stall/{reason}_share", share, f"Part of the last seconds (0 to 1) in which {why}.")


def _numbers(prefix: str, status: Status, only: Collection[str] = (), of: str = "") -> Iterator[Measurement]:
    for name, field in type(status).model_fields.items():
        value = getattr(status, name)
        if isinstance(value, int | float) and name not in _NO_MEASUREMENT and (not only or name in only):
            meaning = " ".join((field.description or name.replace("_", " ").capitalize() + ".").split())
            yield Measurement(f"{prefix}/{of}{name}", float(value), meaning, name in _COUNTERS)
