"""What the progress view says: from made-up statuses, with a made-up clock."""

from __future__ import annotations

import io
import os
import pty
from pathlib import Path

import pytest
from rich.console import Console

from common.status import Counters, FetcherStatus, Hop, TrainerStatus
from common.status_files import write_status
from services.supervisor.progress import (
    Display,
    ProgressModel,
    bottleneck,
    live_status,
    progress_model,
    remaining_s,
    render,
)
from services.supervisor.supervisor import Processes

FETCHER = FetcherStatus(
    state="streaming",
    pid=11,
    uptime_s=60.0,
    files_total=40,
    files_planned=10,
    events_planned=5000,
    slots=8,
    slots_free=3,
    units_ready=2,
    decoders=2,
    events_decoded_per_s=1234.0,
)
TRAINER = TrainerStatus(
    state="training",
    pid=12,
    device="cpu",
    step=10,
    epochs=1,
    seconds=20.0,
    counters=Counters(events_read=2000, events_trained=1600, events_outlier=400),
    events_per_s=80.0,
    particles_per_s=9000.0,
    losses={"c_loss": -1.25},
)


def test_the_eta_of_an_epoch_follows_from_the_files_planned_so_far() -> None:
    # 40 files of 500 events; 18,000 are left, read at 80 · 2000 / 1600 = 100 a second.
    assert remaining_s(FETCHER, TRAINER) == pytest.approx(180.0)


def test_the_eta_of_max_steps_follows_from_the_events_in_a_step() -> None:
    # 160 events a step, so half a step a second.
    assert remaining_s(None, TRAINER.model_copy(update={"max_steps": 110})) == pytest.approx(200.0)


def test_the_sooner_end_of_two_is_the_eta() -> None:
    assert remaining_s(FETCHER, TRAINER.model_copy(update={"max_steps": 110})) == pytest.approx(180.0)
    assert remaining_s(FETCHER, TRAINER.model_copy(update={"max_steps": 20})) == pytest.approx(20.0)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "starting"},
        {"state": "finished"},
        {"events_per_s": 0.0},
        {"counters": Counters()},
        {"epochs": 0},
    ],
)
def test_an_eta_that_nothing_tells_is_unknown(change: dict[str, object]) -> None:
    trainer = TRAINER.model_copy(update=change)
    assert remaining_s(FETCHER, trainer) is None
    assert "ETA unknown" in progress_model(FETCHER, trainer, {}, 5.0).plain_line()


def test_an_eta_is_unknown_before_the_first_file_is_planned_and_before_any_status() -> None:
    assert remaining_s(FETCHER.model_copy(update={"files_planned": 0}), TRAINER) is None
    assert remaining_s(None, None) is None


@pytest.mark.parametrize(
    ("stage", "reason", "words"),
    [
        ("trainer", "no_free_slot", "trainer (no free slot 71 % of the last 5 s) - "),
        ("decoders", "no_credit", "decoders (no credit 71 % of the last 5 s) - add some with --decoders"),
        ("staging", "not_staged", "staging (next files not staged yet 71 % of the last 5 s) - "),
    ],
)
def test_the_bottleneck_is_named_with_its_reason_and_remedy(stage: str, reason: str, words: str) -> None:
    fetcher = FETCHER.model_copy(update={"bottleneck": stage, "stall_shares": {reason: 0.71}})
    assert bottleneck(fetcher).startswith(words)


def test_no_decoder_is_a_bottleneck_of_its_own() -> None:
    assert bottleneck(FETCHER.model_copy(update={"decoders": 0})) == "decoders (none is connected)"


def test_a_run_without_a_last_epoch_shows_no_more_files_planned_than_there_are() -> None:
    line = progress_model(FETCHER.model_copy(update={"files_planned": 45}), TRAINER, {}, 65.0).plain_line()
    assert "files 45 planned, 40 an epoch" in line


def test_the_line_holds_what_a_reader_wants_to_know() -> None:
    line = progress_model(FETCHER, TRAINER, {"trainer": 1, "decoder": 0}, 65.0).plain_line()
    for words in (
        "time 1 min 5 s, ETA 3 min",
        "trainer training on cpu",
        "step 10, epoch 1/1",
        "80 events/s, 9,000 particles/s",
        "c_loss -1.25",
        "files 10/40 planned",
        "decoded 1,234 events/s, 2 decoders",
        "slots 3 free, 2 ready of 8",
        "bottleneck none",
        "restarts trainer 1",
    ):
        assert words in line


HOPS_TOLD = {
    "hops": {
        "staged": Hop(wait_put_share=0.9, occupancy=1.0),
        "leases": Hop(wait_get_share=0.125, occupancy=0.875),
        "slots": Hop(wait_put_share=0.5, occupancy=0.75),
    },
    "batches_occupancy": 0.5,
}
WITH_HOPS = progress_model(
    FETCHER.model_copy(update=HOPS_TOLD),
    TRAINER.model_copy(update={"batches": Hop(wait_put_share=0.4, wait_get_share=0.03)}),
    {},
    65.0,
)


def test_the_line_holds_every_hop_with_both_waits_and_its_occupancy() -> None:
    line = WITH_HOPS.plain_line()
    told = "staged 90/0/100, leases 0/12/88, slots 50/0/75, batches 40/3/50"
    assert line.endswith(f"hops (put waits/get waits/full, %) {told}")
    assert "hops" not in progress_model(None, None, {}, 1.0).plain_line()


def test_the_view_shows_the_hops_as_a_table_that_fits_80_columns() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(render(WITH_HOPS))
    lines = [line.strip("│ ").split() for line in out.getvalue().splitlines()]
    assert ["hops", "last", "5", "s", "put", "waits", "get", "waits", "full"] in lines
    assert ["slots", "50", "%", "0", "%", "75", "%"] in lines
    assert ["batches", "40", "%", "3", "%", "50", "%"] in lines
    assert max(len(line) for line in out.getvalue().splitlines()) <= 80


def test_a_hop_that_nobody_tells_fully_is_left_out() -> None:
    alone = progress_model(None, TRAINER, {}, 1.0)
    assert alone.hops == ()


def test_with_auto_the_number_that_is_wanted_is_shown_and_the_remedy_is_no_flag() -> None:
    auto = FETCHER.model_copy(update={"decoders_wanted": 3, "bottleneck": "decoders"})
    line = progress_model(auto, TRAINER, {}, 1.0).plain_line()
    assert "2 decoders of 3 wanted" in line
    assert "more are added as cores and local.max_decoders allow" in line
    assert "--decoders" not in line


def test_training_that_is_not_healthy_or_went_back_is_shown_and_a_sound_one_is_not() -> None:
    def line(**change: object) -> str:
        return progress_model(None, TRAINER.model_copy(update=change), {}, 1.0).plain_line()

    assert "health" not in line(health_reason="step 1: long ago")
    assert "health warning: step 7: c_loss is 2e+04" in line(health="warning", health_reason="step 7: c_loss is 2e+04")
    assert "health healthy; went back to a good checkpoint 2 time(s)" in line(rollbacks=2, health_reason="step 7")


def test_the_part_that_is_done_follows_from_the_eta() -> None:
    assert progress_model(FETCHER, TRAINER, {}, 65.0).fraction == pytest.approx(0.1)


def test_the_status_of_a_former_process_is_not_live(tmp_path: Path) -> None:
    write_status(tmp_path, "trainer", TRAINER)
    assert live_status(tmp_path, "trainer", TrainerStatus, Processes({"trainer": 12}, {})) == TRAINER
    assert live_status(tmp_path, "trainer", TrainerStatus, Processes({"trainer": 13}, {})) is None
    assert live_status(tmp_path, "trainer", TrainerStatus, Processes({}, {})) is None


def test_without_a_terminal_a_line_appears_now_and_then(tmp_path: Path) -> None:
    write_status(tmp_path, "trainer", TRAINER)
    write_status(tmp_path, "fetcher", FETCHER)
    out = io.StringIO()
    now = [100.0]
    processes = Processes({"trainer": 12, "fetcher": 11}, {})
    with Display(tmp_path, Console(file=out, width=40), clock=lambda: now[0], plain_line_s=5.0) as display:
        for now[0] in (100.5, 104.9, 105.0, 105.5, 109.0, 110.5):
            display.watch(processes)
    lines = out.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == ["time 5 s", "time 10 s"]


def test_on_a_terminal_the_view_shows_every_row_and_what_was_said_stays(tmp_path: Path) -> None:
    write_status(tmp_path, "fetcher", FETCHER)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    with Display(tmp_path, console) as display:
        display.watch(Processes({"fetcher": 11}, {}))
        display.say("decoder-1 was killed by SIGKILL [it starts again]")
    text = out.getvalue()
    assert "not up yet" in text
    assert "10/40 planned" in text
    assert "decoder-1 was killed by SIGKILL [it starts again]" in text


def test_text_that_looks_like_markup_is_shown_as_it_is() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(render(ProgressModel((("losses", "[red]x[/red]"),), 0.5)))
    assert "[red]x[/red]" in out.getvalue()


def test_a_closed_terminal_does_not_end_the_run(tmp_path: Path) -> None:
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal:
        os.close(reader)
        with Display(tmp_path, Console(file=terminal, force_terminal=True)) as display:
            display.say("nobody reads this")
            display.watch(Processes({}, {}))
