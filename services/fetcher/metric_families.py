"""Prometheus metrics of a run, by Prometheus' conventions: base units in the name, labels for what is alike. Pure.

Names come from those of common/measurements.py: `hop/slots/wait_put_s` is `icestream_hop_wait_put_seconds_total` with
the label `hop="slots"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from common.measurements import Measurement
from common.status import FetcherStatus, TrainerStatus

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


def measured_families(measured: Iterable[Measurement]) -> list[Metric]:
    """Metric families of measurements, each once."""
    found: dict[str, Metric] = {}
    for one in measured:
        name, labels = named(one.name)
        family = found.get(name)
        if family is None:
            family = found[name] = _family(name, _MEANINGS.get(name, one.meaning), is_counter=one.is_counter)
        family.add_sample(PREFIX + name + ("_total" if one.is_counter else ""), labels, one.value)
    return list(found.values())


def named(measurement: str) -> tuple[str, dict[str, str]]:
    """Name of the family, without prefix and `_total`, and the labels of a measurement."""
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


def state_families(fetcher: FetcherStatus | None, trainer: TrainerStatus | None) -> Iterator[Metric]:
    """States of the services: of each family one sample is 1, that of the current state, the others are 0."""
    if fetcher is not None:
        yield _states("fetcher_state", "State of the fetcher.", fetcher.state, _literals(FetcherStatus, "state"))
        bottlenecks = _literals(FetcherStatus, "bottleneck")
        yield _states("bottleneck", "Bottleneck of the last seconds.", fetcher.bottleneck, bottlenecks)
    if trainer is not None:
        yield _states("trainer_state", "State of the trainer.", trainer.state, _literals(TrainerStatus, "state"))
        yield _states("trainer_health", "Health of the newest training steps.", trainer.health, HEALTH)


def gauge(name: str, meaning: str, value: float | None = None, **labels: str) -> GaugeMetricFamily:
    """Gauge with one sample; with none if there is no value."""
    family = GaugeMetricFamily(PREFIX + name, meaning)
    if value is not None:
        family.add_sample(PREFIX + name, labels, value)
    return family


def _family(name: str, meaning: str, *, is_counter: bool) -> Metric:
    kind = CounterMetricFamily if is_counter else GaugeMetricFamily
    return kind(PREFIX + name, meaning)


def _states(name: str, meaning: str, current: str, possible: Iterable[str]) -> Metric:
    family = _family(name, meaning, is_counter=False)
    for state in possible:
        family.add_sample(PREFIX + name, {"state": state}, float(state == current))
    return family


def _literals(status: type[FetcherStatus | TrainerStatus], field: str) -> tuple[str, ...]:
    return get_args(status.model_fields[field].annotation)
