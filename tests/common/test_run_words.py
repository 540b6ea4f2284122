"""Words on a run, from made-up statuses."""

from __future__ import annotations

import re

import pytest
from shown_statuses import FETCHER, TRAINER

from common.run_words import bottleneck, bottleneck_of_the_hour, files_words, gpu_words, progress_line, remaining_s
from common.status import Counters, FetcherStatus, GpuStatus, Hop, LastHour, TimeShares, TrainerStatus


def fetcher(**shares: float) -> FetcherStatus:
    return FetcherStatus(last_hour=TimeShares(seconds=3600.0, shares=shares))


def trainer(**shares: float) -> TrainerStatus:
    return TrainerStatus(last_hour=TimeShares(seconds=3600.0, shares=shares))


@pytest.mark.parametrize(
    ("fetcher", "trainer", "words"),
    [
        (
            fetcher(no_free_slot=0.05, no_credit=0.3, not_staged=0.2),
            trainer(put=0.1, get=0.44),
            "decoders (no credit 30 % of the last 1 h; the trainer waited for data 44 %)",
        ),
        (fetcher(no_free_slot=0.0), trainer(put=0.99), "trainer (its next batch was ready 99 % of the last 1 h"),
        (fetcher(no_credit=0.02), trainer(get=0.01), "none (the last 1 h; the trainer waited for data 1 %)"),
        (fetcher(not_staged=1.0), None, "staging (next files not staged yet 100 % of the last 1 h)"),
        (None, trainer(put=0.8, get=0.0), "trainer ("),
    ],
)
def test_the_bottleneck_of_the_hour_is_what_was_waited_for_most(
    fetcher: FetcherStatus | None, trainer: TrainerStatus | None, words: str
) -> None:
    assert bottleneck_of_the_hour(fetcher, trainer).startswith(words)


def test_the_last_hour_forgets_what_was_before_it_and_keeps_a_sample_a_minute() -> None:
    hour = LastHour()
    assert hour.update(0.0, {"get": 0.0}) == TimeShares()
    for second in range(1, 3 * 3600 + 1):  # waits for data in the first hour only
        shares = hour.update(float(second), {"get": float(min(second, 3600))})
        if second == 1800:
            assert shares == TimeShares(seconds=1800.0, shares={"get": 1.0})
    assert shares.shares == {"get": 0.0}
    assert 3600.0 <= shares.seconds < 3660.0


@pytest.mark.parametrize(
    ("fetcher", "max_steps", "expected_s"),
    [
        (FETCHER, 0, 180.0),  # 40 files of 500 events; 18,000 are left, read at 80 · 2000 / 1600 = 100 a second
        (None, 110, 200.0),  # 160 events a step, so half a step a second
        (FETCHER, 110, 180.0),
        (FETCHER, 20, 20.0),
        (FETCHER.model_copy(update={"files_planned": 0}), 0, None),
    ],
)
def test_the_eta_is_that_of_the_epochs_or_of_max_steps_whichever_is_sooner(
    fetcher: FetcherStatus | None, max_steps: int, expected_s: float | None
) -> None:
    found = remaining_s(fetcher, TRAINER.model_copy(update={"max_steps": max_steps}))
    assert found == (expected_s and pytest.approx(expected_s))


@pytest.mark.parametrize(
    "change",
    [{"state": "starting"}, {"state": "finished"}, {"events_per_s": 0.0}, {"counters": Counters()}, {"epochs": 0}],
)
def test_an_eta_that_nothing_tells_is_unknown(change: dict[str, object]) -> None:
    trainer = TRAINER.model_copy(update=change)
    assert remaining_s(FETCHER, trainer) is None
    assert "ETA" not in progress_line(FETCHER, trainer, {}, 5.0)


def stalled(bottleneck: str, **shares: float) -> dict[str, object]:
    return {"bottleneck": bottleneck, "stall_shares": shares}


@pytest.mark.parametrize(
    ("of_fetcher", "of_trainer", "words"),
    [
        (stalled("trainer", no_free_slot=0.71), {}, "trainer (compute-bound: no free slot 71 % of…trainer.threads=0 …"),
        (stalled("decoders", no_credit=0.71), {}, "decoders (no credit 71 % of the last 5 s) - add some with…"),
        (stalled("staging", not_staged=0.71), {}, "staging (next files not staged yet 71 % of the last 5 s) - …"),
        (
            {},
            {"wait_fraction": 0.02, "device": "cuda:0"},
            "trainer (…waits for data 2 % of…a larger stream.batch_events or …",
        ),
        ({}, {"wait_fraction": 0.2, "batches": Hop(wait_put_share=0.3)}, "none (the trainer waits for data 20 % of…"),
        (stalled("trainer", no_free_slot=0.5), {"wait_fraction": 0.6}, "slots (no free slot 50 % of…data 60 %…slots …"),
        ({"decoders": 0}, {}, "decoders (none is connected)"),
        ({"decoders_wanted": 3, "bottleneck": "decoders"}, {}, "…more are added as cores and local.max_decoders allow"),
        ({"bottleneck": "staging"}, None, "staging"),  # a trainer on another machine
    ],
)
def test_the_bottleneck_is_named_with_its_reason_and_remedy(
    of_fetcher: dict[str, object], of_trainer: dict[str, object] | None, words: str
) -> None:
    trainer = None if of_trainer is None else TRAINER.model_copy(update=of_trainer)
    found = bottleneck(FETCHER.model_copy(update=of_fetcher), trainer)
    assert re.fullmatch(re.escape(words).replace("…", ".*"), found)


@pytest.mark.parametrize(
    ("total", "epochs", "epoch", "words"),
    [(16, 4, 1, "4, epoch 2/4"), (4, 0, 5, "4, epoch 6"), (16, 4, 4, "4, epoch 4/4")],
)
def test_files_are_those_of_one_epoch(total: int, epochs: int, epoch: int, words: str) -> None:
    fetcher = FETCHER.model_copy(update={"files_total": total, "epochs": epochs, "files_planned": 24})
    assert files_words(fetcher, TRAINER.model_copy(update={"epochs": epochs, "epoch": epoch})) == words


def test_a_line_is_short_and_holds_the_step_the_rate_the_losses_and_the_time_left() -> None:
    trainer = TRAINER.model_copy(
        update={
            "step": 1220,
            "max_steps": 1560,
            "events_per_s": 2104.4,
            "wait_fraction": 0.012,
            "counters": Counters(events_read=878_400, events_trained=878_400),
            "losses": {"c_loss": -1.0312, "g_loss": 0.6444, "m_loss": 2.0},
        }
    )
    line = progress_line(None, trainer, {"trainer": 0}, 920.0)
    assert line == "00:15:20 78 % step 1,220/1,560 ep 1/1 2,104 ev/s wait 1% c_loss -1.03 g_loss 0.644 ETA 1m56s"


def test_a_line_names_troubles_and_a_sound_run_has_none() -> None:
    fetcher = FETCHER.model_copy(update={"files_bad": 2, "problem": "no token"})
    ill = TRAINER.model_copy(update={"health": "warning", "health_reason": "step 7: c_loss is 2e+04"})
    line = progress_line(fetcher, ill, {"decoder": 1, "trainer": 0}, 5.0)
    assert line.endswith("health warning: step 7: c_loss is 2e+04 bad files 2 restarts decoder 1 PROBLEM no token")


def test_before_the_first_step_a_line_says_what_is_waited_for() -> None:
    assert progress_line(None, None, {}, 5.0) == "00:00:05 starting"
    listing = FETCHER.model_copy(update={"state": "listing", "listed": "3 directories, 12 files"})
    assert progress_line(listing, None, {}, 5.0) == "00:00:05 listing the inputs (3 directories, 12 files)"
    assert progress_line(FETCHER, None, {}, 5.0) == "00:00:05 the trainer is starting"
    assert progress_line(FETCHER, None, {}, 5.0, stopping=True) == "00:00:05 stopping"


GPU = GpuStatus(
    utilisation=0.834,
    memory_utilisation=0.41,
    memory_share=0.12,
    allocated_mean_bytes=5 << 30,
    allocated_max_bytes=3 << 29,
    reserved_bytes=9 << 30,
)


def test_the_gpu_is_shown_with_its_load_and_the_memory_in_tensors() -> None:
    assert gpu_words(GPU) == (
        "83 % busy, 41 % of the time memory access, memory 12 %, tensors 5.0 GiB mean, 1.5 GiB max, 9.0 GiB reserved"
    )
    assert gpu_words(GpuStatus(reserved_bytes=3 << 20)) == "tensors 3 MiB reserved"
    assert gpu_words(None) == ""


def test_a_plain_line_has_the_gpu_in_short_and_one_of_a_cpu_has_none() -> None:
    assert " gpu 83% 5.0/1.5/9.0GiB c_loss" in progress_line(FETCHER, TRAINER.model_copy(update={"gpu": GPU}), {}, 5.0)
    without_nvml = GpuStatus(allocated_max_bytes=1 << 30)
    assert " gpu ?/1.0/?GiB " in progress_line(FETCHER, TRAINER.model_copy(update={"gpu": without_nvml}), {}, 5.0)
    assert "gpu" not in progress_line(FETCHER, TRAINER, {}, 5.0)
