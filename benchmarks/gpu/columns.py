"""Columns of the page's tables: key of a row, heading, form of the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.gpu.channel import Value


def _text(value: Value) -> str:
    return str(value).replace("|", "/").replace("\n", " ")


def _whole(value: Value) -> str:
    return f"{value:,.0f}"


def _scaled(factor: float, digits: int) -> Callable[[Value], str]:
    return lambda value: f"{float(value or 0) / factor:,.{digits}f}"


def _percent(value: Value) -> str:
    return f"{100 * float(value or 0):.0f} %"


class Column(NamedTuple):
    """One column."""

    key: str
    heading: str
    form: Callable[[Value], str] = _text


_MS = _scaled(1e-3, 3)
_US = _scaled(1e-6, 1)
_GB_S = _scaled(1e9, 1)
_TFLOP_S = _scaled(1e12, 2)
_MIB = _scaled(2**20, 1)

STEP = (
    Column("variant", "variant"),
    Column("precision", "precision"),
    Column("events", "events", _whole),
    Column("seconds", "ms a step", _MS),
    Column("events_per_s", "events/s", _whole),
    Column("against_plain", "× plain", _scaled(1, 2)),
    Column("host_s", "host, ms", _MS),
    Column("operators", "operators", _whole),
    Column("flop_per_s", "TFLOP/s", _TFLOP_S),
    Column("flop_share", "of the matmul ceiling", _percent),
    Column("bytes_per_s", "GB/s", _GB_S),
    Column("bytes_share", "of the memory ceiling", _percent),
    Column("roofline", "of the roofline", _percent),
    Column("bytes_per_particle", "KiB a muon", _scaled(1024, 0)),
    Column("allocated_bytes", "allocated, MiB", _MIB),
    Column("reserved_bytes", "reserved, MiB", _MIB),
    Column("first_s", "first step, s", _scaled(1, 1)),
    Column("note", "note"),
)

COLUMNS: dict[str, tuple[Column, ...]] = {
    "ceilings": (
        Column("what", "what"),
        Column("precision", "precision"),
        Column("shape", "shape"),
        Column("flop_per_s", "TFLOP/s", _TFLOP_S),
        Column("bytes_per_s", "GB/s", _GB_S),
        Column("seconds", "µs", _US),
    ),
    "step": STEP,
    "compiled": STEP,
    "checks": (Column("check", "check"), Column("outcome", "outcome")),
    "segments": (
        Column("operator", "operator"),
        Column("counts", "muons an event"),
        Column("particles", "muons", _whole),
        Column("seconds", "µs", _US),
        Column("bytes_per_s", "GB/s", _GB_S),
        Column("bytes_share", "of the memory ceiling", _percent),
        Column("operators", "operators", _whole),
        Column("note", "note"),
    ),
    "kernels": (
        Column("variant", "variant"),
        Column("precision", "precision"),
        Column("events", "events", _whole),
        Column("kernel", "kernel"),
        Column("calls", "calls a step", _scaled(1, 1)),
        Column("seconds", "ms a step", _MS),
    ),
    "copies": (
        Column("source", "source"),
        Column("bytes", "MiB", _MIB),
        Column("seconds", "ms", _MS),
        Column("bytes_per_s", "GB/s", _GB_S),
        Column("host_s", "host, ms", _MS),
    ),
    "tests": (Column("selection", "marker"), Column("passed", "passed"), Column("skipped", "skipped")),
    "memory": (
        Column("steps", "steps", _whole),
        Column("resident_bytes", "resident, MiB", _MIB),
        Column("allocated_bytes", "allocated, MiB", _MIB),
        Column("max_allocated_bytes", "most allocated, MiB", _MIB),
        Column("reserved_bytes", "reserved, MiB", _MIB),
        Column("inactive_split_bytes", "in pieces, MiB", _MIB),
        Column("retries", "retries"),
        Column("out_of_memory", "out of memory"),
    ),
    "ranks": (
        Column("ranks", "ranks"),
        Column("events", "events", _whole),
        Column("seconds", "ms a step", _MS),
        Column("outcome", "outcome"),
    ),
    "pipeline": (
        Column("batch_events", "events a batch", _whole),
        Column("decoders", "decoders"),
        Column("steps", "steps", _whole),
        Column("events_per_s", "events/s", _whole),
        Column("waited", "waited for data", _percent),
        Column("copied_bytes_per_s", "copied, GB/s", _scaled(1e9, 3)),
        Column("gpu_busy", "GPU busy", _percent),
        Column("memory_busy", "its memory busy", _percent),
        Column("note", "note"),
    ),
}
"""Columns by stage. One without a value in any row is left out."""
