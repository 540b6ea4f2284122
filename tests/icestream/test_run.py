"""`icestream run`, with stand-ins instead of the services."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from common.errors import BadInputError
from common.locks import RUN_PARTS, RunLock, RunPart
from common.status import TrainerStatus
from icestream.commands import run_session as command
from icestream.commands.run import run
from icestream.commands.run_session import OWN_CONTENTS, already_complete, next_line
from services.config.root import Config, load_config
from services.supervisor import supervisor

TRAINER = """
import json, os, sys
from pathlib import Path
status = Path(sys.argv[1]) / "status"
status.mkdir(exist_ok=True)
counters = dict(events_read=10, events_trained=int(sys.argv[2]), events_empty=1, particles_trained=90)
report = dict(state="finished", pid=os.getpid(), step=3, epochs=1, seconds=2.0, counters=counters)
if os.environ.get("RANK", "0") == "0":
    (status / "trainer.json").write_text(json.dumps(report))
"""
REFUSAL = "import sys; print('Error: the plan has changed', sys.argv[1:]); sys.exit(2)"
WAIT = "import signal; signal.pause()"


@pytest.fixture(autouse=True)
def _open_umask() -> None:
    """As where each user has a group of his own. A run sets its own."""
    os.umask(0o002)


@pytest.fixture(autouse=True)
def _inputs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Working directory with folders of data: demo, more."""
    folder = tmp_path_factory.mktemp("work")
    for name in ("demo", "more"):
        (folder / name).mkdir()
        (folder / name / "a.parquet").touch()
    monkeypatch.chdir(folder)


@pytest.fixture(autouse=True)
def services(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Commands of the stand-ins, by service: a trainer that trains 9 events of 10, and others that wait."""
    commands = {"trainer": [TRAINER, "RUN_DIR", "9"], "fetcher": [WAIT], "decoder": [WAIT]}

    def service_command(name: str, run_dir: Path, *_: object) -> list[str]:
        arguments = [str(run_dir) if part == "RUN_DIR" else part for part in commands[name.partition("-")[0]]]
        return [sys.executable, "-I", "-S", "-c", *arguments]

    monkeypatch.setattr(command, "service_command", service_command)
    monkeypatch.setattr(supervisor, "FAREWELL_S", 0.0)  # the stand-ins that wait do not end by themselves
    for name in [name for name in os.environ if name.startswith("ICESTREAM_")]:
        monkeypatch.delenv(name)
    return commands


def icestream_run(run_dir: Path, *arguments: str) -> Result:
    result = CliRunner().invoke(run, ["--run-dir", str(run_dir), *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.process
def test_a_run_tells_where_everything_is_ends_with_a_summary_and_needs_no_options_to_go_on(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "one"
    flags = "--decoders 1 --device cpu --epochs 3 --max-steps 7 --seed 5 --strict --set stream.slots=4"
    options = "-i demo -i more --model likelihood --set critic_steps=3"
    result = icestream_run(run_dir, *options.split(), *flags.split())
    assert result.exit_code == 0
    assert result.stderr == "Warning: trainer.wgan.critic_steps: not used by the model likelihood\n"
    assert f"run directory  {run_dir} (new)" in result.output
    assert f"inputs         {Path.cwd()}/demo, {Path.cwd()}/more" in result.output
    assert f"TensorBoard    icestream tensorboard {run_dir}" in result.output
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["exit_status"], summary["events_read"], summary["adds_up"]) == ("finished", 10, True)
    made = [run_dir.parent, *run_dir.parent.rglob("*")]
    assert {path.name for path in made} > {"config.json", "summary.json", "status", "trainer.json", "trainer.log"}
    assert [path for path in made if path.stat().st_mode & 0o077] == [], "its owner's alone, whatever the umask"

    assert "(new, with stored settings)" in icestream_run(run_dir).output
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / "step-000000003.pt").touch()
    assert "(resumes from its newest checkpoint)" in icestream_run(run_dir).output
    stored = json.loads((run_dir / "config.json").read_text())
    assert (stored["input"][0], stored["epochs"], stored["seed"]) == (str(Path("demo").absolute()), 3, 5)
    assert (stored["local"]["decoders"], stored["stream"]["slots"]) == (1, 4)
    assert (stored["trainer"]["device"], stored["trainer"]["max_steps"]) == ("cpu", 7)
    assert stored["fetcher"]["strict"] is True


@pytest.mark.process
def test_counts_of_a_former_session_are_not_added_up_with_the_records_of_a_new_plan(
    tmp_path: Path, services: dict[str, list[str]]
) -> None:
    shards = ("--set", "stream.shards=2")
    of_shards = "shards=[counters, dict(counters)]"
    services["trainer"][0] = TRAINER.replace('state="finished"', f'state="stopped", {of_shards}')
    assert icestream_run(tmp_path, "-i", "demo", *shards).exit_code == 1, "the stand-in fetchers have planned nothing"
    services["trainer"] = [REFUSAL]
    refused = icestream_run(tmp_path, "--seed", "4", "--new-plan")
    assert refused.exit_code == 2
    assert "the plan has changed" in refused.stderr
    assert "do not add up" not in refused.output


@pytest.mark.process
def test_the_error_of_a_service_is_shown_and_stored(tmp_path: Path, services: dict[str, list[str]]) -> None:
    begins = TRAINER.replace('state="finished"', 'state="training"').replace("step=3", "step=0")
    services["trainer"] = [f"{begins}\n{REFUSAL}", "RUN_DIR", "0"]
    result = icestream_run(tmp_path, "-i", "demo", "--new-plan")
    assert result.exit_code == 2
    assert "Error: trainer: the plan has changed" in result.output
    assert "--new-plan" in result.output
    assert "events trained" not in result.output, "no zeros before the error"
    assert json.loads((tmp_path / "summary.json").read_text())["exit_code"] == 2


@pytest.mark.process
def test_a_run_that_is_refused_leaves_the_stored_configuration_as_it_was(
    tmp_path: Path, services: dict[str, list[str]]
) -> None:
    icestream_run(tmp_path, "-i", "demo", "--seed", "3")
    stored = (tmp_path / "config.json").read_text()
    services["trainer"] = [REFUSAL]
    refused = icestream_run(tmp_path, "--seed", "4")
    assert refused.exit_code == 2
    assert "events read" not in refused.output, "the former session's numbers"
    assert refused.output.count("the plan has changed") == 1
    assert (tmp_path / "config.json").read_text() == stored


def test_a_run_without_input_or_directory_says_what_to_do_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none stored in .*run \(no such folder\): .*-i/--input"):
        icestream_run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "run", Path("/proc/nope")):
        with pytest.raises(BadInputError, match="choose another --run-dir"):
            icestream_run(place, "-i", "demo")


def fill(run_dir: Path) -> None:
    run_dir.mkdir(exist_ok=True)
    for name in OWN_CONTENTS:
        (run_dir / name.replace("*", "-wal")).touch()
    for name in ("shards/000/locks/fetcher", "inventory/files-1f.jsonl"):
        (run_dir / name.partition("/")[0]).unlink()
        (run_dir / name).parent.mkdir(parents=True)
        (run_dir / name).touch()
    (run_dir / "ledger.sqlite").touch()
    (run_dir / "config.json").write_text("{}")
    (run_dir / "notes.txt").touch()


@pytest.mark.process
def test_fresh_deletes_what_icestream_made_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path / "run")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious").touch()
    (tmp_path / "run" / "cache").unlink()
    (tmp_path / "run" / "cache").symlink_to(tmp_path / "data")
    assert icestream_run(tmp_path / "run", "--fresh", "--yes", "-i", "demo").exit_code == 0
    left = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert left == ["config.json", "locks", "logs", "notes.txt", "status", "summary.json"]
    assert (tmp_path / "data" / "precious").exists()


@pytest.mark.process
@pytest.mark.parametrize("how", [("--fresh", "--yes"), ("--new-plan",)])
def test_folders_of_a_user_with_the_names_of_a_runs_folders_stay(tmp_path: Path, how: tuple[str, ...]) -> None:
    mine = [
        tmp_path / name
        for name in (
            *("inventory/list.csv", "shards/000/events.parquet", "shards/000/ledger.sqlite"),
            *("shards/part/status/a", "shards/a.parquet"),
        )
    ]
    made = [
        tmp_path / name
        for name in (
            *("inventory/files-1f.jsonl", "inventory/planned-001.jsonl", "inventory/bad-000", "inventory/epochs-002"),
            *("inventory/begun-001.jsonl", "inventory/.begun-001.jsonl.1f.part", "inventory/.files-1f.jsonl.lock"),
            *("shards/001/status/a", "shards/001/ledger.sqlite-wal"),
        )
    ]
    (tmp_path / "shards" / "001" / "locks").mkdir(parents=True)
    (tmp_path / "shards" / "001" / "locks" / "fetcher").touch()
    for path in (*mine, *made):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert icestream_run(tmp_path, *how, "-i", "demo").exit_code == 0
    assert [path for path in mine if not path.exists()] == []
    assert [path for path in made if path.exists()] == []


@pytest.mark.process
def test_fresh_asks_on_a_terminal_and_deletes_nothing_without_a_yes_or_an_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    (tmp_path / "config.json").write_text('{"input": ["demo"]}')
    with pytest.raises(BadInputError, match="no terminal to ask on: add --yes"):
        icestream_run(tmp_path, "--fresh", "-i", "demo")
    with pytest.raises(BadInputError, match="--fresh forgets"):
        icestream_run(tmp_path, "--fresh", "--yes")
    monkeypatch.setattr("icestream.commands.run_session._can_ask", lambda: True)
    monkeypatch.setattr("click.confirm", lambda question: False)
    with pytest.raises(BadInputError, match="nothing was deleted"):
        icestream_run(tmp_path, "--fresh", "-i", "demo")
    assert (tmp_path / "checkpoints").exists()
    monkeypatch.setattr("click.confirm", lambda question: True)
    assert icestream_run(tmp_path, "--fresh", "-i", "demo").exit_code == 0
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.process
def test_fresh_does_not_delete_what_the_run_is_to_start_from(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "checkpoints" / "best.pt").touch()
    (tmp_path / "link").symlink_to(run_dir)
    for place in ("", "checkpoints", "checkpoints/best.pt"):
        with pytest.raises(BadInputError, match=r"--fresh would delete .*, which the run is to start from"):
            icestream_run(run_dir, "--fresh", "--yes", "-i", "demo", "--start-from", str(tmp_path / "link" / place))
    assert (run_dir / "checkpoints" / "best.pt").exists()
    (tmp_path / "other").touch()
    other = str(tmp_path / "other")
    assert icestream_run(run_dir, "--fresh", "--yes", "-i", "demo", "--start-from", other).exit_code == 0


@pytest.mark.parametrize("part", RUN_PARTS)
def test_fresh_deletes_nothing_under_a_run_or_a_service_that_is_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: RunPart
) -> None:
    monkeypatch.setattr(command, "_ENDING_S", 0.0)
    fill(tmp_path)
    in_use = pytest.raises(BadInputError, match=r"the run is in use by .* \(by hand, process")
    with RunLock(tmp_path, part, "by hand"), in_use:
        icestream_run(tmp_path, "--fresh", "--yes", "-i", "demo")
    assert (tmp_path / "checkpoints").exists()


def test_trainers_that_can_not_share_the_stream_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"3 trainers can't share stream\.shards = 2 evenly"):
        icestream_run(tmp_path, "-i", "demo", "--trainers", "3", "--set", "stream.shards=2")


# ------------------------------------------------------------------ what comes after a run

FINISHED = TrainerStatus(state="finished", step=312, epochs=2, epoch=2)
BY_STEPS = FINISHED.model_copy(update={"max_steps": 312})


def config(**flags: Any) -> Config:
    defaults = {"input": ("/data",), "epochs": 2}
    return load_config({}, flags=defaults | {key.replace("__", "."): value for key, value in flags.items()})


FORMER = config().model_dump(mode="json")


def test_a_finished_run_without_another_setting_is_complete() -> None:
    assert already_complete(FORMER, config(), FINISHED) == "Already complete (312 steps). Raise --epochs to continue."
    words = "Already complete (312 steps). Raise --max-steps to continue."
    assert already_complete(FORMER, config(trainer__max_steps=312), BY_STEPS) == words
    stopped = FINISHED.model_copy(update={"state": "stopped", "step": 122})
    words = "Already at step 122: raise --max-steps 3 to continue."
    assert already_complete(FORMER, config(trainer__max_steps=3), stopped) == words


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        ({}, None),
        ({}, FINISHED.model_copy(update={"state": "stopped"})),
        ({}, FINISHED.model_copy(update={"state": "training"})),
        ({"epochs": 3}, FINISHED),
        ({"epochs": 0}, FINISHED),
        ({"seed": 5}, FINISHED),
        ({"input": ("/data", "/more")}, FINISHED),
        ({"outputs__destination": "/copies"}, FINISHED),
        ({"trainer__wgan__critic_steps": 7}, FINISHED),
        ({"trainer__max_steps": 313}, BY_STEPS),
        ({"trainer__max_steps": 0}, BY_STEPS),
    ],
)
def test_a_run_with_something_left_to_do_is_not_complete(flags: dict[str, Any], status: TrainerStatus | None) -> None:
    assert already_complete(FORMER, config(**flags), status) == ""


def test_the_next_command_follows_from_the_end() -> None:
    run_dir = Path("runs/my run")
    assert next_line(run_dir, config(), "interrupted") == "Resume: icestream run --run-dir 'runs/my run'"
    assert next_line(run_dir, config(), "finished") == "Next: icestream evaluate 'runs/my run' -i HELD_OUT_FILES"
    assert next_line(run_dir, config(), "failed") == ""
    assert next_line(run_dir, config(trainer__model="none"), "finished") == ""
    resume = next_line(run_dir, config(trainer__model="mine:TRAINING"), "interrupted")
    assert resume == "Resume: icestream run --run-dir 'runs/my run' --model mine:TRAINING"
    own = next_line(run_dir, config(trainer__model="mine:TRAINING"), "finished")
    assert own == "Next, in Python: icestream.load('runs/my run', model='mine:TRAINING')"
