"""Times on a device: of the host, which only queues the work, and of the work itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

Work = Callable[[], object]


class Times(NamedTuple):
    """Seconds of one call, medians."""

    whole_s: float
    """Until the device has done the work."""
    host_s: float
    """Until the call returned: where the device has enough to do, its queue may fill, and the host waits for it."""


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def once(work: Work, device: torch.device) -> Times:
    """Times of one call."""
    synchronise(device)
    begun_s = time.perf_counter()
    work()
    returned_s = time.perf_counter()
    synchronise(device)
    return Times(time.perf_counter() - begun_s, returned_s - begun_s)


def median(work: Work, device: torch.device, *, repeats: int, warm_up: int = 2, limit_s: float = 10.0) -> Times:
    """Median of ``repeats`` calls, of fewer if they take longer than ``limit_s``, and of one at least."""
    begun_s = time.perf_counter()
    for _ in range(warm_up):
        once(work, device)
    found = [once(work, device)]
    while len(found) < repeats and time.perf_counter() - begun_s < limit_s:
        found.append(once(work, device))
    whole, host = zip(*found, strict=True)
    return Times(statistics.median(whole), statistics.median(host))


def best(work: Work, device: torch.device, *, repeats: int) -> float:
    """Seconds of the fastest call: for ceilings."""
    once(work, device)
    return min(once(work, device).whole_s for _ in range(repeats))
