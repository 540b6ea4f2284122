from __future__ import annotations

from common.measurements import measurements, values
from common.status import HOPS, STALL_REASONS, Counters, FetcherStatus, Hop, TrainerStatus

FETCHER = FetcherStatus(
    pid=4242,
    events_decoded=7,
    slots=8,
    decoder_pids=(4243,),
    stalled_s={"no_credit": 3.0},
    stall_shares={"no_credit": 0.5},
    hops={name: Hop(wait_put_s=1.0, occupancy=0.25) for name in HOPS[:-1]},
    batches_occupancy=0.75,
)
TRAINER = TrainerStatus(
    pid=4244,
    step=11,
    events_per_s=80.0,
    counters=Counters(events_read=5, events_trained=5),
    batches=Hop(wait_put_s=2.0, wait_get_s=4.0, wait_get_share=0.5),
    losses={"c_loss": -1.5},
    checkpoint="checkpoints/secret",
    quarantined=["secret"],
)


def test_every_hop_and_every_stall_has_its_numbers_under_its_name() -> None:
    told = values(FETCHER, TRAINER)
    for hop in HOPS:
        for number in ("wait_put_s", "wait_get_s", "wait_put_share", "wait_get_share", "occupancy"):
            assert f"hop/{hop}/{number}" in told
    for reason in STALL_REASONS:
        assert {f"stall/{reason}_s", f"stall/{reason}_share"} <= told.keys()
    assert (told["hop/slots/wait_put_s"], told["hop/slots/occupancy"]) == (1.0, 0.25)
    assert (told["stall/no_credit_s"], told["stall/no_credit_share"], told["stall/not_staged_s"]) == (3.0, 0.5, 0.0)


def test_the_waits_of_batches_are_the_trainers_and_their_occupancy_the_fetchers() -> None:
    told = values(FETCHER, TRAINER)
    assert (told["hop/batches/wait_put_s"], told["hop/batches/wait_get_s"]) == (2.0, 4.0)
    assert (told["hop/batches/wait_get_share"], told["hop/batches/occupancy"]) == (0.5, 0.75)


def test_a_service_without_a_status_is_not_made_up() -> None:
    assert values(None, None) == {}
    alone = values(None, TRAINER)
    assert "hop/batches/occupancy" not in alone
    assert not any(name.startswith(("fetcher/", "stall/", "hop/slots/")) for name in alone)
    assert not any(name.startswith(("trainer/", "train/")) for name in values(FETCHER, None))


def test_numbers_of_the_status_files_are_there_and_process_ids_and_texts_are_not() -> None:
    told = values(FETCHER, TRAINER)
    assert (told["fetcher/events_decoded"], told["fetcher/slots"]) == (7.0, 8.0)
    assert (told["trainer/step"], told["trainer/events_trained"], told["train/c_loss"]) == (11.0, 5.0, -1.5)
    assert not {4242.0, 4243.0, 4244.0} & set(told.values())
    assert all(isinstance(value, float) for value in told.values())


def test_no_name_is_given_twice_and_each_says_what_it_means() -> None:
    found = measurements(FETCHER, TRAINER)
    assert len({one.name for one in found}) == len(found)
    assert all(len(one.meaning) > 3 for one in found)


def test_what_only_grows_is_a_counter() -> None:
    counters = {one.name for one in measurements(FETCHER, TRAINER) if one.is_counter}
    assert {"hop/leases/wait_get_s", "stall/no_credit_s", "fetcher/events_decoded", "trainer/events_read"} <= counters
    assert not {"hop/leases/occupancy", "hop/leases/wait_get_share", "fetcher/slots", "train/c_loss"} & counters
