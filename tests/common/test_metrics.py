from __future__ import annotations

import pytest

from common.metrics import HopMeter, Rate, Shares


def test_a_rate_is_the_growth_per_second() -> None:
    rate = Rate(window_s=5.0)
    assert rate.update(0.0, 100.0) == 0.0
    assert rate.update(2.0, 120.0) == pytest.approx(10.0)


def test_a_rate_forgets_what_is_older_than_its_window() -> None:
    rate = Rate(window_s=5.0)
    values = [rate.update(float(s), 1000.0 * min(s, 3)) for s in range(12)]
    assert values[3] == pytest.approx(1000.0)
    assert values[6] == pytest.approx(400.0)  # 5 s back it stood at 1000, now at 3000
    assert values[-1] == 0.0


def test_a_rate_of_a_rarely_updated_counter_uses_the_last_two_samples() -> None:
    rate = Rate(window_s=5.0)
    rate.update(0.0, 0.0)
    rate.update(100.0, 0.0)
    assert rate.update(200.0, 50.0) == pytest.approx(0.5)


def test_two_samples_of_one_instant_have_no_rate() -> None:
    rate = Rate()
    rate.update(1.0, 0.0)
    assert rate.update(1.0, 5.0) == 0.0


def test_shares_are_parts_of_the_last_seconds() -> None:
    shares = Shares(window_s=4.0)
    shares.update(0.0, {"disk": 0.0, "network": 0.0})
    assert shares.update(4.0, {"disk": 1.0, "network": 3.0}) == pytest.approx({"disk": 0.25, "network": 0.75})
    assert shares.update(8.0, {"disk": 5.0, "network": 3.0}) == pytest.approx({"disk": 1.0, "network": 0.0})


def test_a_hop_adds_up_its_waits_and_means_its_occupancy_over_time() -> None:
    meter = HopMeter(window_s=10.0)
    meter.hop(0.0)
    meter.add(1.0, put=1.0, occupancy=1.0)
    meter.add(3.0, get=0.5, occupancy=0.25)
    hop = meter.hop(4.0)
    assert (hop.wait_put_s, hop.wait_get_s) == pytest.approx((1.0, 1.5))
    assert (hop.wait_put_share, hop.wait_get_share, hop.occupancy) == pytest.approx((0.25, 0.375, 1.75 / 4))


def test_a_hop_forgets_the_occupancy_of_long_ago_but_not_the_waits() -> None:
    meter = HopMeter(window_s=2.0)
    meter.hop(0.0)
    meter.add(4.0, put=1.0, occupancy=1.0)
    meter.hop(4.0)
    meter.add(4.0, occupancy=0.5)
    hop = meter.hop(8.0)
    assert (hop.wait_put_s, hop.wait_put_share, hop.occupancy) == pytest.approx((4.0, 0.0, 0.5))
