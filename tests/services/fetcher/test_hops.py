"""The hops of scripted ticks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.status import Hop
from services.fetcher.hops import Hops, Queues

QUIET = Queues(
    stall=None,
    staging_full=False,
    staged=0.0,
    decoders=4,
    decoders_busy=4,
    slots=8,
    slots_filled=0,
    trainer_waits=False,
    prefetched=0.0,
)


def after(*script: tuple[float, Queues | None]) -> tuple[dict[str, Hop], float]:
    """The hops after spans of (seconds, what held in them), within the window."""
    hops, now_s = Hops(), 100.0
    hops.status(now_s)
    for span_s, queues in script:
        hops.tick(now_s, queues)
        now_s += span_s
    hops.tick(now_s, None)
    return hops.status(now_s)


def waits(hop: Hop) -> tuple[float, float]:
    return hop.wait_put_s, hop.wait_get_s


def test_staged_puts_wait_while_no_block_may_be_begun_and_gets_while_nothing_is_staged() -> None:
    hops, _ = after(
        (1.0, replace(QUIET, staging_full=True, staged=1.0)),
        (2.0, replace(QUIET, stall="not_staged", staged=0.0)),
        (1.0, replace(QUIET, staged=0.5)),
    )
    assert waits(hops["staged"]) == pytest.approx((1.0, 2.0))
    assert hops["staged"].occupancy == pytest.approx((1.0 + 0.5) / 4)


def test_leases_puts_wait_without_credit_and_gets_are_the_mean_of_idle_decoders() -> None:
    hops, _ = after((2.0, replace(QUIET, stall="no_credit")), (2.0, replace(QUIET, decoders_busy=1)))
    assert waits(hops["leases"]) == pytest.approx((2.0, 2.0 * 3 / 4))
    assert hops["leases"].occupancy == pytest.approx((4 + 1) / 2 / 4)


def test_without_any_decoder_nobody_waits_to_get_a_lease() -> None:
    hops, _ = after((3.0, replace(QUIET, stall="no_credit", decoders=0, decoders_busy=0)))
    assert waits(hops["leases"]) == pytest.approx((3.0, 0.0))
    assert hops["leases"].occupancy == 0.0


def test_slots_puts_wait_without_a_free_slot_and_gets_while_the_head_is_not_ready() -> None:
    hops, _ = after(
        (1.0, replace(QUIET, stall="no_free_slot", slots_filled=8)),
        (3.0, replace(QUIET, trainer_waits=True, slots_filled=2)),
    )
    assert waits(hops["slots"]) == pytest.approx((1.0, 3.0))
    assert hops["slots"].occupancy == pytest.approx((1 * 8 + 3 * 2) / 4 / 8)


def test_the_occupancy_of_batches_is_the_mean_of_what_is_at_the_trainer() -> None:
    hops, batches = after((1.0, replace(QUIET, prefetched=1.0)), (1.0, replace(QUIET, prefetched=0.5)))
    assert batches == pytest.approx(0.75)
    assert "batches" not in hops, "its waits are the trainer's to tell"


@pytest.mark.parametrize(
    ("stall", "charged"),
    [("not_staged", ("staged", "get")), ("no_credit", ("leases", "put")), ("no_free_slot", ("slots", "put"))],
)
def test_a_stall_is_charged_to_its_own_hop_alone(stall: str, charged: tuple[str, str]) -> None:
    hops, _ = after((2.0, replace(QUIET, stall=stall)))
    waited = {(name, "put"): hop.wait_put_s for name, hop in hops.items()}
    waited |= {(name, "get"): hop.wait_get_s for name, hop in hops.items()}
    assert {where: seconds for where, seconds in waited.items() if seconds} == {charged: pytest.approx(2.0)}


def test_what_held_at_a_tick_holds_until_the_next() -> None:
    hops = Hops()
    hops.tick(10.0, replace(QUIET, stall="no_credit"))
    hops.tick(13.0, replace(QUIET, stall="no_free_slot"))
    told, _ = hops.status(13.0)
    assert (told["leases"].wait_put_s, told["slots"].wait_put_s) == (3.0, 0.0)


def test_nothing_is_counted_before_the_first_tick_and_while_nothing_flows() -> None:
    hops, batches = after((50.0, None), (1.0, None))
    assert all(hop == Hop() for hop in hops.values())
    assert batches == 0.0
