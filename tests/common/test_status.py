"""Status files, and the numbers in them: rates and shares, those of several fetchers together, their names."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from pathlib import Path

import pytest
from descriptors import no_descriptor_left

from common import status as status_files
from common.process import Rarely
from common.status import (
    HOPS,
    STALL_REASONS,
    STATUS_FOLDER,
    Counters,
    FetcherStatus,
    Hop,
    HopMeter,
    Rate,
    RunStatus,
    TimeShares,
    TrainerStatus,
    fetchers_together,
    measurements,
    read_status,
    values,
    write_status,
)


@pytest.mark.parametrize("text", ["", "{", '{"state": "unheard of"}', "[]"])
def test_a_file_that_is_no_status_is_none(tmp_path: Path, text: str) -> None:
    write_status(tmp_path, "fetcher", FetcherStatus())
    (tmp_path / STATUS_FOLDER / "fetcher.json").write_text(text)
    assert read_status(tmp_path, "fetcher", FetcherStatus) is None


def test_a_service_without_a_free_descriptor_still_writes_its_status(tmp_path: Path) -> None:
    write_status(tmp_path, "fetcher", FetcherStatus(files_total=0))
    with no_descriptor_left():
        for files in (1, 2, 3):
            write_status(tmp_path, "fetcher", FetcherStatus(files_total=files, problem="too many open files"))
    assert read_status(tmp_path, "fetcher", FetcherStatus) == FetcherStatus(
        files_total=3, problem="too many open files"
    )


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_a_status_that_can_not_be_written_ends_no_service_and_is_told(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(status_files, "_not_written", Rarely(logging.getLogger(__name__)))
    write_status(tmp_path, "fetcher", FetcherStatus(files_total=1))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fail)
        for _ in range(100):
            write_status(tmp_path, "fetcher", FetcherStatus(files_total=2))
    assert len(caplog.records) == 5
    assert os.strerror(number) in caplog.records[0].getMessage()
    assert read_status(tmp_path, "fetcher", FetcherStatus) == FetcherStatus(files_total=1)
    write_status(tmp_path, "fetcher", FetcherStatus(files_total=3))
    assert read_status(tmp_path, "fetcher", FetcherStatus) == FetcherStatus(files_total=3)


def test_counters_add_up_when_every_event_has_one_fate() -> None:
    fates = {"events_trained": 5, "events_outlier": 1, "events_empty": 2, "events_quarantined": 3}
    fates |= {"events_held_out": 4, "events_filtered": 7, "events_invalid": 6}
    assert Counters(events_read=28, **fates).adds_up()
    assert not Counters(events_read=29, **fates).adds_up()
    for name in fates:
        assert not Counters(events_read=28, **(fates | {name: 0})).adds_up()


@pytest.mark.process
def test_a_forked_process_does_not_close_the_descriptor_that_its_parent_kept_in_reserve(tmp_path: Path) -> None:
    write_status(tmp_path, "run", RunStatus())
    reserve, _ = status_files._reserve
    child = os.fork()
    if child == 0:  # as after a fork that closes the descriptors, and opens a file that gets the number
        os.dup2(os.open(tmp_path, os.O_RDONLY), reserve)
        write_status(tmp_path, "fetcher", FetcherStatus())
        with contextlib.suppress(OSError):
            os._exit(0 if os.path.samestat(os.fstat(reserve), tmp_path.stat()) else 1)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_rate_forgets_what_is_older_than_its_window() -> None:
    rate = Rate()
    values = [rate.update(float(s), 1000.0 * min(s, 3)) for s in range(12)]
    assert values[3] == pytest.approx(1000.0)
    assert values[6] == pytest.approx(400.0)  # 5 s back it stood at 1000, now at 3000
    assert values[-1] == 0.0


def test_a_hop_adds_up_its_waits_and_means_its_occupancy_over_time() -> None:
    meter = HopMeter()
    meter.hop(0.0)
    meter.add(1.0, put=1.0, occupancy=1.0)
    meter.add(3.0, get=0.5, occupancy=0.25)
    hop = meter.hop(4.0)
    assert (hop.wait_put_s, hop.wait_get_s) == pytest.approx((1.0, 1.5))
    assert (hop.wait_put_share, hop.wait_get_share, hop.occupancy) == pytest.approx((0.25, 0.375, 1.75 / 4))


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


def test_every_number_of_the_status_files_is_there_under_its_name_and_process_ids_and_texts_are_not() -> None:
    told = values(FETCHER, TRAINER)
    for hop in HOPS:
        for number in ("wait_put_s", "wait_get_s", "wait_put_share", "wait_get_share", "occupancy"):
            assert f"hop/{hop}/{number}" in told
    for reason in STALL_REASONS:
        assert {f"stall/{reason}_s", f"stall/{reason}_share"} <= told.keys()
    assert (told["hop/slots/wait_put_s"], told["hop/slots/occupancy"]) == (1.0, 0.25)
    assert (told["stall/no_credit_s"], told["stall/no_credit_share"], told["stall/not_staged_s"]) == (3.0, 0.5, 0.0)
    assert (told["fetcher/events_decoded"], told["fetcher/slots"]) == (7.0, 8.0)
    assert (told["trainer/step"], told["trainer/events_trained"], told["train/c_loss"]) == (11.0, 5.0, -1.5)
    assert not {4242.0, 4243.0, 4244.0} & set(told.values())
    assert all(isinstance(value, float) for value in told.values())


def test_a_service_without_a_status_is_not_made_up() -> None:
    assert values(None, None) == {}
    alone = values(None, TRAINER)
    assert "hop/batches/occupancy" not in alone
    assert not any(name.startswith(("fetcher/", "stall/", "hop/slots/")) for name in alone)
    assert not any(name.startswith(("trainer/", "train/")) for name in values(FETCHER, None))


def test_what_only_grows_is_a_counter() -> None:
    counters = {one.name for one in measurements(FETCHER, TRAINER) if one.is_counter}
    assert {"hop/leases/wait_get_s", "stall/no_credit_s", "fetcher/events_decoded", "trainer/events_read"} <= counters
    assert not {"hop/leases/occupancy", "hop/leases/wait_get_share", "fetcher/slots", "train/c_loss"} & counters


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
