"""`icestream status` on made-up run directories."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from run_dirs import TRAINER, made_run, session

from common.errors import BadInputError
from common.file_lock import RunLock
from common.status_files import write_status
from icestream.commands.status.command import render, status
from icestream.commands.status.snapshot import RunSnapshot, read_run
from icestream.commands.status.view import done_share, rows_of


def rows(run: RunSnapshot) -> dict[str, str]:
    return dict(rows_of(run, time.time()))


def test_a_running_run_shows_progress_bottlenecks_checkpoint_health_and_machine(tmp_path: Path) -> None:
    made_run(tmp_path, session(), input=["pelican://a.org/x/*.parquet"], fetcher={"disk_budget_gib": 7})
    with RunLock(tmp_path, "run", "icestream run"):
        told = rows(read_run(tmp_path))
    assert told["state"].startswith(f"running for 2 h: icestream run, process {os.getpid()} on ")
    assert told["step"] == "100 of about 200, epoch 1/1"
    assert told["time"] == "trained for 1 min 40 s, ETA 50 s"
    assert told["speed"].startswith("200 events/s")
    assert told["bottleneck"]
    assert told["last hour"].startswith("decoders (no credit 50 % of the last 1 h")
    assert told["checkpoint"].startswith("step 90, 0 s ago (checkpoints/step-000000090.pt)")
    assert told["health"] == "warning: the loss jumped, 2 lines in health.jsonl"
    assert told["restarts"] == "decoder 2"
    assert told["GPU"] == (
        "90 % busy, 40 % of the time memory access, memory 25 %, tensors 5.0 GiB mean, 8.0 GiB max, 9.0 GiB reserved"
    )
    assert told["compute"] == "12.3 TFLOP/s in matrix products, 4 MiB/s of data copied"
    assert told["disk"].endswith("; staged 3.0 GiB of 7.0 GiB")
    assert told["files"] == "40 in all epochs, 3 bad (logs/fetcher.log)"
    assert f"run {os.getpid()} (" in told["processes"]
    assert "next" not in told


def test_a_run_that_was_killed_says_so_shows_no_rate_of_now_and_how_to_resume(tmp_path: Path) -> None:
    made_run(tmp_path, session())
    told = rows(read_run(tmp_path))
    assert told["state"].startswith("killed 0 s ago")
    assert told["next"] == f"resume: icestream run --run-dir {tmp_path}"
    assert {"speed", "GPU", "bottleneck", "processes"}.isdisjoint(told)
    assert "last hour" in told


def test_a_failed_run_shows_its_error_and_a_finished_one_is_done(tmp_path: Path) -> None:
    made_run(tmp_path, session(state="failed", exit_code=2, error="trainer: no such device"))
    run = read_run(tmp_path)
    assert rows(run)["state"] == "failed 0 s ago: trainer: no such device"
    assert run.exit_code == 2
    write_status(tmp_path, "run", session(state="finished", exit_code=0))
    run = read_run(tmp_path)
    assert done_share(run) == 1.0
    assert rows(run)["step"] == "100, epoch 1/1"


def test_a_session_whose_trainer_has_not_reported_is_starting_although_the_former_one_had(tmp_path: Path) -> None:
    made_run(tmp_path, None, TRAINER.model_copy(update={"state": "finished"}))
    os.utime(tmp_path / "status/trainer.json", (1.0, 1.0))
    write_status(tmp_path, "run", session())
    with RunLock(tmp_path, "run", "icestream run"):
        assert read_run(tmp_path).state == "starting"


def test_the_end_of_services_started_by_hand_after_a_run_counts_more_than_the_runs_own(tmp_path: Path) -> None:
    now_s = time.time()
    finished = TRAINER.model_copy(update={"state": "finished"})
    made_run(tmp_path, session(state="failed", started_s=now_s - 90.0, changed_s=now_s - 60.0), finished)
    assert read_run(tmp_path).state == "finished"


def test_json_has_every_documented_field_and_the_page_documents_every_field(tmp_path: Path) -> None:
    made_run(tmp_path, session())
    result = CliRunner().invoke(status, [str(tmp_path), "--json"])
    told = json.loads(result.output)
    page = (Path(__file__).resolve().parents[3] / "docs/reference/status.md").read_text()
    for name, value in told.items():
        assert f"| `{name}` |" in page, f"docs/reference/status.md does not document {name}"
        for part in value if isinstance(value, dict) and name not in ("losses", "restarts") else ():
            assert f"`{part}`" in page, f"docs/reference/status.md does not document {name}.{part}"
    documented = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert [name for name in documented if name not in told] == []


def test_without_a_terminal_the_state_is_printed_once(tmp_path: Path) -> None:
    made_run(tmp_path, session())
    result = CliRunner().invoke(status, [str(tmp_path)])
    assert result.exit_code == 0
    assert result.output.splitlines()[1].startswith("state       killed")


def test_text_of_a_run_directory_can_not_control_the_terminal(tmp_path: Path) -> None:
    made_run(tmp_path, session(state="failed", error="\x1b]0;title\x07 [bold]red"))
    result = CliRunner().invoke(status, [str(tmp_path), "--once"])
    assert "\x1b" not in result.output
    assert "[bold]red" in result.output
    assert render(read_run(tmp_path))


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_run_directory_of_which_only_the_configuration_is_there_is_new(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "config.json").write_text(content or "{}")
    run = read_run(tmp_path)
    assert run.state == "new"
    assert rows(run)["next"].startswith("start it: icestream run --run-dir")


def test_a_folder_that_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"not a run directory \(it has no config\.json\)"):
        read_run(tmp_path)
    with pytest.raises(BadInputError, match=r"typo: not a run directory \(no such folder\)"):
        read_run(tmp_path / "typo")


def test_looking_at_a_run_changes_nothing_in_its_directory(tmp_path: Path) -> None:
    made_run(tmp_path, session())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    read_run(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("number", ["inf", "nan", "-inf"])
def test_a_status_with_a_time_that_is_no_number_is_shown(tmp_path: Path, number: str) -> None:
    made_run(tmp_path, session())
    run = read_run(tmp_path).model_copy(update={"step": 3, "trained_s": float(number)})
    assert rows(run)["time"] == "trained for unknown"


def test_a_run_whose_files_can_not_be_read_is_one_clear_error(tmp_path: Path) -> None:
    made_run(tmp_path, session())
    (tmp_path / "status/trainer.json").unlink()
    (tmp_path / "status/trainer.json").symlink_to("trainer.json")  # for root, too, no permission is missing
    with pytest.raises(BadInputError, match=r"can't be read: .*Too many levels"):
        CliRunner().invoke(status, [str(tmp_path), "--once"], catch_exceptions=False)
