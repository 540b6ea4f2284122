"""Derived figures: rates, shares of the ceilings, ratios to the plain step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.gpu.channel import Row


class Ceilings(NamedTuple):
    """Measured ceilings of the device; empty or 0 where they were not measured."""

    flop_per_s: dict[str, float]
    """Peak rates by precision."""
    bytes_per_s: float


def ceilings_of(rows: Iterable[Row]) -> Ceilings:
    """Ceilings from the rows of their stage."""
    flops, num_bytes = {}, 0.0
    for row in rows:
        if row["what"] == "matmul":
            flops[str(row["precision"])] = _number(row, "flop_per_s")
        if row["what"] == "device memory":
            num_bytes = _number(row, "bytes_per_s")
    return Ceilings(flops, num_bytes)


def with_rates(rows: Sequence[Row], ceilings: Ceilings) -> list[Row]:
    """Rows of the step with events/s, FLOP/s, bytes/s, their shares of the ceilings, and the ratio to the plain step.

    ``roofline``: the least time that the step's products, or its bytes, need at the ceilings, over the measured time.
    None where bytes could not be counted.
    """
    plain: dict[tuple[object, object], float] = {
        (row["events"], row["precision"]): _number(row, "seconds")
        for row in rows
        if row["variant"] == "plain" and "seconds" in row
    }
    return [row | _rates(row, ceilings, plain) for row in rows]


def _rates(row: Row, ceilings: Ceilings, plain: dict[tuple[object, object], float]) -> Row:
    seconds = _number(row, "seconds")
    if not seconds:
        return {}
    found: Row = {"events_per_s": _number(row, "events") / seconds}
    precision = str(row["precision"])
    flops = _number(row, "flops") / seconds
    most_flops = ceilings.flop_per_s.get(precision, 0.0)
    found["flop_per_s"] = flops
    found["flop_share"] = flops / most_flops if most_flops else None
    if "bytes" in row:
        bytes_per_s = _number(row, "bytes") / seconds
        found["bytes_per_s"] = bytes_per_s
        found["bytes_per_particle"] = _number(row, "bytes") / max(_number(row, "particles"), 1.0)
        found["bytes_share"] = bytes_per_s / ceilings.bytes_per_s if ceilings.bytes_per_s else None
        shares = [found["flop_share"], found["bytes_share"]]
        found["roofline"] = max(share for share in shares if isinstance(share, float)) if all(shares) else None
    # The plain step has no bfloat16: that of tf32, or on the CPU of float32, stands for it.
    beside = [plain[key] for name in (precision, "tf32", "float32") if (key := (row["events"], name)) in plain]
    found["against_plain"] = beside[0] / seconds if beside else None
    return found


def _number(row: Row, name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
