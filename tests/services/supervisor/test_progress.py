"""The progress view from made-up statuses with a made-up clock, the record of a session, and its log."""

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

from common.status import GpuStatus, RunStatus, TrainerStatus, read_status, write_status
from services.supervisor import progress
from services.supervisor.supervisor import Processes, SessionOutcome


def text(model: progress.ProgressModel) -> str:
    """All rows in one line."""
    return " | ".join(f"{label} {row}" for label, row in model.rows)


def test_the_rows_hold_all_that_a_reader_wants_to_know() -> None:
    rows = text(progress.progress_model(FETCHER, TRAINER, {"trainer": 1, "decoder": 0}, 65.0))
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


def test_what_the_device_does_once_it_is_measured_and_bad_health_have_rows_of_their_own() -> None:
    gpu = GpuStatus(utilisation=0.8, memory_share=0.5, allocated_max_bytes=1 << 30, reserved_bytes=2 << 30)
    busy = TRAINER.model_copy(update={"copied_bytes_per_s": float(1 << 28), "gpu": gpu})
    rows = text(progress.progress_model(FETCHER, busy, {}, 1.0))
    assert "| copied 256 MiB/s of data |" in rows
    assert "| GPU 80 % busy, memory 50 %, tensors 1.0 GiB max, 2.0 GiB reserved |" in rows
    idle = text(progress.progress_model(FETCHER, TRAINER, {}, 1.0))
    assert "copied" not in idle
    assert "GPU" not in idle
    assert "health" not in idle
    ill = TRAINER.model_copy(update={"health": "warning", "health_reason": "step 7: c_loss is 2e+04"})
    assert "health warning: step 7: c_loss is 2e+04" in text(progress.progress_model(None, ill, {}, 1.0))


def test_before_their_first_status_both_services_are_starting_and_while_a_run_ends_they_have_ended() -> None:
    starting = text(progress.progress_model(None, None, {}, 1.0))
    assert "trainer starting | fetcher starting" in starting
    ending = text(progress.progress_model(None, None, {}, 1.0, stopping=True))
    assert ending.startswith("time 1 s | trainer ended | fetcher ended")


def test_a_fetcher_that_has_nothing_left_to_do_has_ended_and_is_not_starting_while_the_trainer_ends(
    tmp_path: Path,
) -> None:
    write_status(tmp_path, "trainer", TRAINER.model_copy(update={"state": "finished"}))
    out = io.StringIO()
    with progress.Display(tmp_path, Console(file=out, force_terminal=True, _environ={"TERM": "xterm"})) as display:
        display.watch(Processes({"trainer": 12}, {}))
    assert re.search(r"fetcher\S*(\x1b\[[0-9;]*m|\s)*ended", out.getvalue())


def test_after_ctrl_c_the_bottleneck_does_not_say_that_the_trainer_is_starting() -> None:
    waiting = FETCHER.model_copy(update={"state": "waiting for a trainer"})
    stopped = TRAINER.model_copy(update={"state": "stopped"})
    for model in (
        progress.progress_model(waiting, stopped, {}, 1.0),
        progress.progress_model(waiting, None, {}, 1.0, stopping=True),
    ):
        assert "bottleneck none, the run is ending" in text(model)
        assert "ETA" not in text(model)


def test_the_view_says_how_much_is_done_without_colours_and_leaves_room_for_an_echoed_ctrl_c(tmp_path: Path) -> None:
    write_status(tmp_path, "trainer", TRAINER)
    write_status(tmp_path, "fetcher", FETCHER)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, no_color=True, _environ={"TERM": "xterm"})
    with progress.Display(tmp_path, console) as display:
        display.watch(Processes({"fetcher": 11, "trainer": 12}, {}))
        display.say("decoder-1 was killed by SIGKILL [it starts again]")
    assert "decoder-1 was killed by SIGKILL [it starts again]" in out.getvalue()
    rows = [Text.from_ansi(row).plain for row in out.getvalue().replace("\r", "\n").splitlines()]
    assert max(map(len, rows)) <= 80 - len("^C^C^C")
    assert any(re.search("done .* 10 %  2,000 of 20,000 events", row) for row in rows)
    assert any(re.search("step  10 of about 100 ", row) for row in rows)


def test_a_resized_terminal_is_cleared_and_shows_the_newest_lines_again(tmp_path: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    with progress.Display(tmp_path, console) as display:
        display.say("decoder-1 was killed")
        display.watch(Processes({}, {}))
        console.width = 60
        display.watch(Processes({}, {}))
        after = out.getvalue().rpartition("\x1b[2J")[2]
        assert after.index("decoder-1 was killed") < after.index("fetcher")
        display.watch(Processes({}, {}))
    assert out.getvalue().count("\x1b[2J") == 1


def test_the_status_of_a_former_process_is_not_live(tmp_path: Path) -> None:
    write_status(tmp_path, "trainer", TRAINER)
    assert progress.live_status(tmp_path, "trainer", TrainerStatus, Processes({"trainer": 12}, {})) == TRAINER
    assert progress.live_status(tmp_path, "trainer", TrainerStatus, Processes({"trainer": 13}, {})) is None
    assert progress.live_status(tmp_path, "trainer", TrainerStatus, Processes({}, {})) is None


def test_warnings_about_the_models_settings_reach_the_screen_once(tmp_path: Path) -> None:
    write_status(tmp_path, "trainer", TRAINER.model_copy(update={"warnings": ("critic_steps = 0: no critic",)}))
    out = io.StringIO()
    with progress.Display(tmp_path, Console(file=out), clock=lambda: 0.0) as display:
        for _ in range(3):
            display.watch(Processes({"trainer": 12}, {}))
    assert out.getvalue().splitlines() == ["Warning: critic_steps = 0: no critic"]


def test_without_a_terminal_there_is_a_line_at_intervals(tmp_path: Path) -> None:
    write_status(tmp_path, "trainer", TRAINER)
    out = io.StringIO()
    now = [100.0]
    with progress.Display(tmp_path, Console(file=out, width=40), clock=lambda: now[0]) as display:
        for now[0] in (104.9, 105.0, 109.0, 110.5, 120.0, 121.0, 142.0, 171.0, 172.0):
            display.watch(Processes({"trainer": 12, "fetcher": 11}, {}))
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["00:00:05", "00:00:10", "00:00:21", "00:00:42", "00:01:12"]


def test_a_closed_terminal_does_not_end_the_run(tmp_path: Path) -> None:
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal:
        os.close(reader)
        with progress.Display(tmp_path, Console(file=terminal, force_terminal=True)) as display:
            display.say("nobody reads this")
            display.watch(Processes({}, {}))


def test_the_record_follows_the_processes_and_keeps_the_end(tmp_path: Path) -> None:
    now_s = [100.0]
    record = progress.RunRecord(tmp_path, clock=lambda: now_s[0])

    def written() -> RunStatus:
        status = read_status(tmp_path, progress.RUN_STATUS, RunStatus)
        assert status is not None
        return status

    first = RunStatus(state="running", pid=os.getpid(), started_s=100.0, changed_s=100.0)
    assert written() == first
    now_s[0] = 101.0
    record.watch(Processes({"fetcher": 7, "trainer": 8}, {"trainer": 1}))
    now_s[0] = 102.0
    record.watch(Processes({"fetcher": 7, "trainer": 8}, {"trainer": 1}))
    assert written().changed_s == 101.0, "nothing is written while nothing changes"
    assert (written().processes, written().restarts) == ({"fetcher": 7, "trainer": 8}, {"trainer": 1})
    record.watch(Processes({"fetcher": 7}, {"trainer": 1}, stopping=True))
    assert written().state == "stopping"
    now_s[0] = 160.0
    record.ended(SessionOutcome("failed", 2, "trainer: no", {"trainer": 1}, 60.0))
    end = {"state": "failed", "changed_s": 160.0, "restarts": {"trainer": 1}, "exit_code": 2, "error": "trainer: no"}
    assert written() == first.model_copy(update=end)


def test_the_log_is_appended_redacted_and_for_its_owner_only(tmp_path: Path) -> None:
    old_mask = os.umask(0o077)
    try:
        for text in ("first", "https://data.example/x?authz=secret"):
            with progress.supervisor_log(tmp_path) as log:
                log.info("%s", text)
            log.info("not while the log is closed")
    finally:
        os.umask(old_mask)
    log_file = tmp_path / "logs" / "supervisor.log"
    assert [line.split(" INFO ")[1] for line in log_file.read_text().splitlines()] == [
        "first",
        "https://data.example/x?…",
    ]
    assert log_file.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "supervisor.log").symlink_to("/dev/full")
    with progress.supervisor_log(tmp_path) as log:
        log.info("nobody can write this")
    assert capsys.readouterr().err == ""
