"""The progress view: from made-up statuses, with a made-up clock."""

from __future__ import annotations

import io
import os
import pty
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from shown_statuses import FETCHER, TRAINER

from common.status import GpuStatus, Hop, TrainerStatus
from common.status_files import write_status
from services.supervisor.progress import (
    Display,
    ProgressModel,
    live_status,
    progress_model,
    render,
)
from services.supervisor.session import Processes


def text(model: ProgressModel) -> str:
    """All rows in one line."""
    return " | ".join(f"{label} {row}" for label, row in model.rows)


def test_the_rows_hold_all_that_a_reader_wants_to_know() -> None:
    rows = text(progress_model(FETCHER, TRAINER, {"trainer": 1, "decoder": 0}, 65.0))
    for words in (
        "time 1 min 5 s, ETA 3 min",
        "trainer training on cpu",
        "step 10 ",
        "80 events/s, 9,000 particles/s",
        "c_loss -1.25",
        "files 40, epoch 1/1",
        "decoded 1,234 events/s, 2 decoders",
        "slots 3 free, 2 ready of 8",
        "bottleneck trainer (compute-bound: waits for data 0 % of the time)",
        "restarts trainer 1",
    ):
        assert words in rows


def test_what_the_device_does_has_rows_of_its_own_once_it_is_measured() -> None:
    gpu = GpuStatus(utilisation=0.8, memory_share=0.5, allocated_max_bytes=1 << 30, reserved_bytes=2 << 30)
    busy = TRAINER.model_copy(update={"flops_per_s": 3e12, "copied_bytes_per_s": float(1 << 28), "gpu": gpu})
    rows = text(progress_model(FETCHER, busy, {}, 1.0))
    assert "| compute 3 TFLOP/s in matrix products, 256 MiB/s of data copied |" in rows
    assert "| GPU 80 % busy, memory 50 %, tensors 1.0 GiB max, 2.0 GiB reserved |" in rows
    idle = text(progress_model(FETCHER, TRAINER, {}, 1.0))
    assert "compute " not in idle.replace("compute-bound", "")
    assert "GPU" not in idle


def test_one_decoder_is_no_plural() -> None:
    assert "1 decoder |" in text(progress_model(FETCHER.model_copy(update={"decoders": 1}), TRAINER, {}, 1.0))


def test_before_their_first_status_both_services_are_starting_and_while_a_run_ends_they_have_ended() -> None:
    starting = text(progress_model(None, None, {}, 1.0))
    assert "trainer starting | fetcher starting" in starting
    ending = text(progress_model(None, None, {}, 1.0, stopping=True))
    assert ending.startswith("time 1 s | trainer ended | fetcher ended")


def test_a_fetcher_that_has_nothing_left_to_do_has_ended_and_is_not_starting_while_the_trainer_ends(
    tmp_path: Path,
) -> None:
    write_status(tmp_path, "trainer", TRAINER.model_copy(update={"state": "finished"}))
    out = io.StringIO()
    with Display(tmp_path, Console(file=out, force_terminal=True, _environ={"TERM": "xterm"})) as display:
        display.watch(Processes({"trainer": 12}, {}))
    assert re.search(r"fetcher\S*(\x1b\[[0-9;]*m|\s)*ended", out.getvalue())


def test_after_ctrl_c_the_bottleneck_does_not_say_that_the_trainer_is_starting() -> None:
    waiting = FETCHER.model_copy(update={"state": "waiting for a trainer"})
    stopped = TRAINER.model_copy(update={"state": "stopped"})
    for model in (progress_model(waiting, stopped, {}, 1.0), progress_model(waiting, None, {}, 1.0, stopping=True)):
        assert "bottleneck none, the run is ending" in text(model)
        assert "ETA" not in text(model)


HOPS = {
    "hops": {
        "staged": Hop(wait_put_share=0.9, occupancy=1.0),
        "leases": Hop(wait_get_share=0.125, occupancy=0.875),
        "slots": Hop(wait_put_share=0.5, occupancy=0.75),
    },
    "batches_occupancy": 0.5,
}
WITH_HOPS = progress_model(
    FETCHER.model_copy(update=HOPS),
    TRAINER.model_copy(update={"batches": Hop(wait_put_share=0.6, wait_get_share=0.03)}),
    {},
    65.0,
)


def test_the_details_of_a_line_hold_every_hop_with_both_waits_and_its_occupancy() -> None:
    hops = "staged 90/0/100, leases 0/12/88, slots 50/0/75, batches 60/3/50, (put waits/get waits/full in %)"
    assert WITH_HOPS.details().endswith(hops)
    assert WITH_HOPS.details().startswith("slots 3 free, 2 ready of 8, bottleneck trainer")
    assert progress_model(None, None, {}, 1.0).details() == ""


def test_the_view_shows_the_hops_as_a_table_that_fits_80_columns() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(render(WITH_HOPS))
    lines = [line.strip("│ ").split() for line in out.getvalue().splitlines()]
    assert ["hops", "last", "5", "s", "put", "waits", "get", "waits", "full"] in lines
    assert ["slots", "50", "%", "0", "%", "75", "%"] in lines
    assert ["batches", "60", "%", "3", "%", "50", "%"] in lines
    assert max(len(line) for line in out.getvalue().splitlines()) <= 80


@pytest.mark.parametrize("columns", [80, 120])
def test_an_echoed_ctrl_c_fits_the_last_row_of_the_view(columns: int, tmp_path: Path) -> None:
    write_status(tmp_path, "trainer", TRAINER)
    write_status(tmp_path, "fetcher", FETCHER)
    out = io.StringIO()
    with Display(
        tmp_path, Console(file=out, force_terminal=True, width=columns, _environ={"TERM": "xterm"})
    ) as display:
        display.watch(Processes({"fetcher": 11, "trainer": 12}, {}))
    rows = [Text.from_ansi(row).plain for row in out.getvalue().replace("\r", "\n").splitlines()]
    assert max(map(len, rows)) <= columns - len("^C^C^C")
    assert any("bottleneck" in row for row in rows)


def test_a_hop_without_complete_measurements_is_left_out() -> None:
    alone = progress_model(None, TRAINER, {}, 1.0)
    assert alone.hops == ()


def test_with_auto_the_number_that_is_wanted_is_shown() -> None:
    auto = FETCHER.model_copy(update={"decoders_wanted": 3})
    assert "2 decoders of 3 wanted" in text(progress_model(auto, TRAINER, {}, 1.0))


def test_training_that_is_not_healthy_has_a_row_of_its_own_and_a_sound_one_has_not() -> None:
    ill = TRAINER.model_copy(update={"health": "warning", "health_reason": "step 7: c_loss is 2e+04"})
    assert "health warning: step 7: c_loss is 2e+04" in text(progress_model(None, ill, {}, 1.0))
    assert "health" not in text(progress_model(None, TRAINER, {}, 1.0))


def test_the_part_that_is_done_follows_from_the_eta() -> None:
    assert progress_model(FETCHER, TRAINER, {}, 65.0).fraction == pytest.approx(0.1)


def test_the_status_of_a_former_process_is_not_live(tmp_path: Path) -> None:
    write_status(tmp_path, "trainer", TRAINER)
    assert live_status(tmp_path, "trainer", TrainerStatus, Processes({"trainer": 12}, {})) == TRAINER
    assert live_status(tmp_path, "trainer", TrainerStatus, Processes({"trainer": 13}, {})) is None
    assert live_status(tmp_path, "trainer", TrainerStatus, Processes({}, {})) is None


def shown_lines(tmp_path: Path, *, verbose: bool) -> list[str]:
    """Lines without a terminal over 70 s."""
    write_status(tmp_path, "trainer", TRAINER)
    write_status(tmp_path, "fetcher", FETCHER.model_copy(update=HOPS))
    out = io.StringIO()
    now = [100.0]
    processes = Processes({"trainer": 12, "fetcher": 11}, {})
    console = Console(file=out, width=40)
    with Display(tmp_path, console, clock=lambda: now[0], verbose=verbose) as display:
        for now[0] in (100.5, 129.9, 130.0, 145.5, 159.0, 165.5):
            display.watch(processes)
    return out.getvalue().splitlines()


def test_without_a_terminal_a_short_line_appears_every_30_s(tmp_path: Path) -> None:
    lines = shown_lines(tmp_path, verbose=False)
    assert [line.split()[0] for line in lines] == ["00:00:30", "00:01:05"]
    assert all(len(line) < 100 for line in lines)


def test_warnings_about_the_models_settings_reach_the_screen_once(tmp_path: Path) -> None:
    write_status(tmp_path, "trainer", TRAINER.model_copy(update={"warnings": ("critic_steps = 0: no critic",)}))
    out = io.StringIO()
    with Display(tmp_path, Console(file=out), clock=lambda: 0.0) as display:
        for _ in range(3):
            display.watch(Processes({"trainer": 12}, {}))
    assert out.getvalue().splitlines() == ["Warning: critic_steps = 0: no critic"]


def test_verbose_adds_the_hops_to_each_line(tmp_path: Path) -> None:
    lines = shown_lines(tmp_path, verbose=True)
    assert [line.split()[0] for line in lines] == ["00:00:30", "slots", "00:01:05", "slots"]
    assert "staged 90/0/100" in lines[1]


def test_on_a_terminal_the_view_shows_every_row_and_what_was_said_stays(tmp_path: Path) -> None:
    write_status(tmp_path, "fetcher", FETCHER)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    with Display(tmp_path, console) as display:
        display.watch(Processes({"fetcher": 11, "trainer": 12}, {}))
        display.say("decoder-1 was killed by SIGKILL [it starts again]")
    shown = out.getvalue()
    assert "starting" in shown
    assert "files" in shown
    assert "decoder-1 was killed by SIGKILL [it starts again]" in shown


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
