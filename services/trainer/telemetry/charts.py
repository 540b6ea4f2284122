"""Charts under TensorBoard's CUSTOM SCALARS, and the scalars that TensorBoard does not need. Pure."""

from __future__ import annotations

from collections.abc import Sequence

Charts = dict[str, dict[str, list[str | list[str]]]]
"""Category -> title -> kind and names of the lines."""

_SPEED = {
    "events per second": ["trainer/events_per_s"],
    "share of time waiting for data": ["trainer/wait_fraction"],
    "floating-point operations per second": ["trainer/flops_per_s"],
    "memory of the trainer, MiB": ["memory/rss_mib", "memory/mean_allocated_mib", "memory/max_reserved_mib"],
    "health: 0 healthy, 1 warning, 2 critical": ["health/state"],
}


def charts(results: Sequence[str], with_floor: Sequence[str]) -> Charts:
    """Results with their means over 500 steps and on held-out events; values with their floors; speed and health."""
    training = {}
    for name in results:
        group, _, last = name.rpartition("/")
        training[name] = [name, f"{name}_ma_500", f"{group}/held_out_{last}"]
    found = {
        "training": training,
        "distance from real events, and its floor": {name: [name, f"{name}_floor"] for name in with_floor},
        "speed and health": _SPEED,
    }
    return {
        category: {title: ["Multiline", [f"^{name}$" for name in names]] for title, names in lines.items()}
        for category, lines in found.items()
        if lines
    }


def is_shown(name: str) -> bool:
    """False for seconds that only grow: shares are shown instead."""
    if name.startswith(("hop/", "stall/")):
        return not name.endswith("_s")
    return name != "trainer/seconds"
