"""Status of the fetchers of several shards as one, for the views of a whole run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from common.status import FetcherStatus, Hop, TimeShares

_SUMS = (
    *("received_bytes", "received_bytes_per_s", "transfers", "files_planned", "files_bad", "bytes_staged"),
    *("events_planned", "units_planned", "units_leased", "units_ready", "units_delivered", "slots", "slots_free"),
    *("arena_bytes", "decoders", "decoder_pids", "decoders_wanted", "decoders_lost", "events_decoded"),
    "events_decoded_per_s",
)


def fetchers_together(fetchers: Sequence[FetcherStatus]) -> FetcherStatus | None:
    """Sums of numbers and times, means of shares, and the first of each text; None for none of them.

    All know the same inventory: `files_total` and `epochs` are those of the run.
    """
    if len(fetchers) < 2:
        return fetchers[0] if fetchers else None
    first = fetchers[0]
    expiries = [one.token_expires_s for one in fetchers if one.token_expires_s is not None]
    sums = {name: sum((getattr(one, name) for one in fetchers), type(getattr(first, name))()) for name in _SUMS}
    texts = {
        name: next((text for one in fetchers if (text := getattr(one, name))), "")
        for name in ("listing", "listed", "problem")
    }
    bottlenecks = Counter(one.bottleneck for one in fetchers if one.bottleneck != "none")
    return first.model_copy(
        update={
            **sums,
            **texts,
            "state": _state({one.state for one in fetchers}),
            "uptime_s": max(one.uptime_s for one in fetchers),
            "files_total": max(one.files_total for one in fetchers),
            "ranges_listed": min(one.ranges_listed for one in fetchers),
            "token_expires_s": min(expiries, default=None),
            "stalled_s": _sums(one.stalled_s for one in fetchers),
            "stall_shares": _means([one.stall_shares for one in fetchers]),
            "last_hour": TimeShares(
                seconds=max(one.last_hour.seconds for one in fetchers),
                shares=_means([one.last_hour.shares for one in fetchers]),
            ),
            "bottleneck": bottlenecks.most_common(1)[0][0] if bottlenecks else "none",
            "hops": {name: _hop([one.hops[name] for one in fetchers if name in one.hops]) for name in first.hops},
            "batches_occupancy": sum(one.batches_occupancy for one in fetchers) / len(fetchers),
        }
    )


def _state(states: set[str]) -> Literal["listing", "waiting for a trainer", "streaming", "finished"]:
    """State of the run: a fetcher that lists or waits holds all others up."""
    if "listing" in states:
        return "listing"
    if "waiting for a trainer" in states:
        return "waiting for a trainer"
    return "streaming" if "streaming" in states else "finished"


def _sums(numbers: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in numbers:
        for name, number in one.items():
            total[name] = total.get(name, 0.0) + number
    return total


def _means(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: number / len(numbers) for name, number in _sums(numbers).items()}


def _hop(hops: Sequence[Hop]) -> Hop:
    times = {name: sum(getattr(one, name) for one in hops) for name in ("wait_put_s", "wait_get_s")}
    shares = ("wait_put_share", "wait_get_share", "occupancy")
    return Hop(**times, **{name: sum(getattr(one, name) for one in hops) / len(hops) for name in shares})
