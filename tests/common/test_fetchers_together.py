from __future__ import annotations

import pytest

from common.fetchers_together import fetchers_together
from common.status import FetcherStatus, Hop, TimeShares

ONE = FetcherStatus(
    state="streaming",
    pid=11,
    files_total=24,
    epochs=2,
    ranges=1,
    ranges_listed=1,
    files_planned=8,
    events_decoded_per_s=100.0,
    slots=4,
    decoders=1,
    decoder_pids=(21,),
    stalled_s={"no_credit": 4.0},
    stall_shares={"no_credit": 0.5},
    last_hour=TimeShares(seconds=100.0, shares={"no_credit": 0.2}),
    bottleneck="decoders",
    hops={"slots": Hop(wait_put_s=2.0, occupancy=0.5)},
    batches_occupancy=1.0,
)
OTHER = ONE.model_copy(
    update={
        "pid": 12,
        "files_planned": 4,
        "problem": "no answer",
        "decoder_pids": (22, 23),
        "decoders": 2,
        "stall_shares": {"no_credit": 0.0},
        "bottleneck": "none",
        "hops": {"slots": Hop(wait_put_s=1.0, occupancy=0.0)},
        "batches_occupancy": 0.0,
        "token_expires_s": 5.0,
    }
)


def test_numbers_are_sums_shares_are_means_and_the_inventory_is_that_of_all() -> None:
    found = fetchers_together([ONE, OTHER])
    assert found is not None
    assert (found.files_total, found.epochs, found.files_planned, found.slots, found.decoders) == (24, 2, 12, 8, 3)
    assert found.decoder_pids == (21, 22, 23)
    assert found.events_decoded_per_s == 200
    assert (found.stalled_s, found.stall_shares) == ({"no_credit": 8.0}, {"no_credit": 0.25})
    assert found.last_hour == TimeShares(seconds=100.0, shares={"no_credit": 0.2})
    assert found.hops == {"slots": Hop(wait_put_s=3.0, occupancy=0.25)}
    assert (found.bottleneck, found.problem, found.batches_occupancy) == ("decoders", "no answer", 0.5)
    assert found.token_expires_s == 5.0


def test_one_fetcher_stays_as_it_is_and_none_is_none() -> None:
    assert fetchers_together([ONE]) is ONE
    assert fetchers_together([]) is None


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["streaming", "listing"], "listing"),
        (["streaming", "waiting for a trainer"], "waiting for a trainer"),
        (["finished", "streaming"], "streaming"),
        (["finished", "finished"], "finished"),
    ],
)
def test_the_run_waits_for_its_last_shard(states: list[str], expected: str) -> None:
    found = fetchers_together([ONE.model_copy(update={"state": state}) for state in states])
    assert found is not None
    assert found.state == expected
