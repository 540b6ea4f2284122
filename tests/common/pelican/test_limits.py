"""Scripted sequences of windows for the number of transfers, and a simulated clock for the bandwidth."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from common.pelican.limits import Bandwidth, Concurrency

WINDOW_S = 10.0
MANY = 1_000


def windows(concurrency: Concurrency, rate: Callable[[int], float], num_windows: int, now_s: float) -> list[int]:
    """The target after each of so many windows in which ``rate(target)`` bytes a second arrive and nothing fails."""
    targets = []
    for i in range(num_windows):
        concurrency.received(round(rate(concurrency.target) * WINDOW_S))
        window(concurrency, good=MANY, bad=0, end_s=now_s + (i + 1) * WINDOW_S)
        targets.append(concurrency.target)
    return targets


def window(concurrency: Concurrency, *, good: int, bad: int, end_s: float) -> None:
    """Transfers that end in a window, the last one when it is over."""
    for ok in [True] * good + [False] * bad:
        concurrency.finished(ok=ok, now_s=end_s - WINDOW_S)
    concurrency.tick(end_s)


def started(limit: int) -> Concurrency:
    """At second 0, when its first window begins."""
    concurrency = Concurrency(limit)
    concurrency.tick(0.0)
    return concurrency


@pytest.mark.parametrize("limit", [1, 2, 8, 64])
def test_a_run_begins_at_the_limit(limit: int) -> None:
    assert Concurrency(limit).target == limit


@pytest.mark.parametrize("limit", [4, 8, 32, 64])
def test_where_each_transfer_brings_its_share_it_stays_near_the_limit(limit: int) -> None:
    targets = windows(started(limit), lambda target: 1e6 * target, 40, 0.0)
    assert min(targets) >= limit - max(1, limit // 8)
    assert targets.count(limit) >= 10


@pytest.mark.parametrize("limit", [4, 8, 32, 64])
def test_after_failures_it_climbs_back_to_the_limit(limit: int) -> None:
    concurrency = started(limit)
    window(concurrency, good=0, bad=MANY, end_s=WINDOW_S)
    assert concurrency.target == limit // 2
    assert limit in windows(concurrency, lambda target: 1e6 * target, 20, WINDOW_S)


def test_it_comes_down_while_fewer_bring_more_and_turns_round_where_they_do_not() -> None:
    def congested(target: int) -> float:
        return 1e6 * (target if target <= 6 else 36 / target)

    targets = windows(started(16), congested, 60, 0.0)
    assert set(targets[-20:]) <= {5, 6, 7}


def test_more_failures_than_successes_halve_it_down_to_one() -> None:
    concurrency = started(16)
    targets = []
    for i in range(6):
        window(concurrency, good=10, bad=11, end_s=(i + 1) * WINDOW_S)
        targets.append(concurrency.target)
    assert targets == [8, 4, 2, 1, 1, 1]


def test_a_few_failures_do_not_halve_it() -> None:
    concurrency = started(16)
    concurrency.received(1_000_000)
    window(concurrency, good=90, bad=10, end_s=WINDOW_S)
    assert concurrency.target == 14


def test_a_window_in_which_less_ended_than_may_run_says_nothing_yet() -> None:
    concurrency = started(8)
    window(concurrency, good=7, bad=0, end_s=WINDOW_S)
    assert concurrency.target == 8
    concurrency.finished(ok=True, now_s=WINDOW_S)
    assert concurrency.target == 7


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 50])
def test_whatever_happens_it_is_never_below_one_or_above_the_limit(limit: int) -> None:
    chance = random.Random(limit)
    concurrency = Concurrency(limit)
    now_s, seen = 0.0, set()
    for _ in range(20_000):
        now_s += chance.expovariate(2.0)
        concurrency.received(chance.randrange(10**9))
        concurrency.finished(ok=chance.random() < 0.6, now_s=now_s)
        seen.add(concurrency.target)
    assert min(seen) == 1
    assert max(seen) == limit


# -------------------------------------------------------------- bandwidth


def test_without_a_limit_there_are_no_pauses() -> None:
    bandwidth = Bandwidth(0.0)
    assert not any(bandwidth.received(10**9, float(i)) for i in range(10))


def test_in_the_long_run_the_bytes_arrive_at_the_rate() -> None:
    bandwidth, now_s, total = Bandwidth(1e6), 0.0, 0
    chance = random.Random(1)
    for _ in range(5_000):
        size_bytes = chance.randrange(1, 300_000)
        total += size_bytes
        now_s += bandwidth.received(size_bytes, now_s)
    # The first second's worth was there from the start.
    assert now_s == pytest.approx((total - 1e6) / 1e6, rel=1e-6)


def test_several_transfers_that_each_pause_as_told_share_the_rate() -> None:
    bandwidth, total = Bandwidth(1e6), 0
    ready_s = [0.0] * 8
    while min(ready_s) < 300.0:
        one = ready_s.index(min(ready_s))
        total += 50_000
        ready_s[one] += bandwidth.received(50_000, ready_s[one])
    assert total == pytest.approx(300e6, rel=0.02)


def test_after_a_long_silence_a_burst_is_one_second_at_most() -> None:
    bandwidth = Bandwidth(1e6)
    bandwidth.received(1_000_000, 0.0)
    assert bandwidth.received(1_000_000, 1_000.0) == 0.0
    assert bandwidth.received(500_000, 1_000.0) == pytest.approx(0.5)
