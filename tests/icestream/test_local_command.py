"""`icestream run`, with stand-ins instead of the services."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from common.errors import BadInputError
from common.file_lock import RUN_PARTS, RunLock, RunPart
from common.redact import without_secrets
from icestream.commands import fresh as command
from icestream.commands.fresh import OWN_CONTENTS
from icestream.commands.run import run
from services.supervisor import names

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
def _open_umask() -> Iterator[None]:
    """As where each user has a group of his own. A run sets its own."""
    umask = os.umask(0o002)
    yield
    os.umask(umask)


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

    monkeypatch.setattr(names, "service_command", service_command)
    for name in [name for name in os.environ if name.startswith("ICESTREAM_")]:
        monkeypatch.delenv(name)
    return commands


def icestream_run(run_dir: Path, *arguments: str) -> Result:
    quick = ["--set", "local.stop_timeout_s=0.01"]
    result = CliRunner().invoke(run, ["--run-dir", str(run_dir), *quick, *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.process
def test_a_run_tells_where_everything_is_and_ends_with_a_summary(tmp_path: Path) -> None:
    result = icestream_run(
        tmp_path,
        "-i",
        "demo",
        "-i",
        "more",
        "--decoders",
        "1",
        "--model",
        "likelihood",
        "--set",
        "critic_steps=3",
    )
    assert result.exit_code == 0
    assert result.stderr.count("\n") == 1
    assert result.stderr == "Warning: trainer.wgan.critic_steps: not used by the model likelihood\n"
    assert f"run directory  {tmp_path} (new)" in result.output
    assert f"inputs         {Path.cwd()}/demo, {Path.cwd()}/more" in result.output
    assert f"TensorBoard    icestream tensorboard {tmp_path}" in result.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["exit_status"], summary["events_read"], summary["adds_up"]) == ("finished", 10, True)


@pytest.mark.process
def test_sums_that_do_not_add_up_are_exit_code_1(tmp_path: Path, services: dict[str, list[str]]) -> None:
    services["trainer"][2] = "8"
    result = icestream_run(tmp_path, "-i", "demo")
    assert result.exit_code == 1
    assert "Error: events do not add up" in result.output


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


@pytest.mark.process
def test_flags_are_stored_and_a_resumed_run_needs_none(tmp_path: Path) -> None:
    flags = "--decoders 1 --device cpu --epochs 3 --max-steps 7 --seed 5 --strict --set stream.slots=4"
    icestream_run(tmp_path, "-i", "demo", *flags.split())
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000000003.pt").touch()
    result = icestream_run(tmp_path)
    assert "(resumes from its newest checkpoint)" in result.output
    stored = json.loads((tmp_path / "config.json").read_text())
    assert (stored["input"], stored["epochs"], stored["seed"]) == ([str(Path("demo").absolute())], 3, 5)
    assert (stored["local"]["decoders"], stored["stream"]["slots"]) == (1, 4)
    assert (stored["trainer"]["device"], stored["trainer"]["max_steps"]) == ("cpu", 7)
    assert stored["fetcher"]["strict"] is True


@pytest.mark.process
def test_decoders_may_be_auto(tmp_path: Path) -> None:
    result = icestream_run(tmp_path, "-i", "demo", "--decoders", "auto")
    assert "fetcher, decoders as needed, trainer" in result.output
    assert json.loads((tmp_path / "config.json").read_text())["local"]["decoders"] == "auto"
    assert result.exit_code == 0


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "", "1025", "9" * 5000])
def test_a_number_of_decoders_that_is_none_is_refused_with_what_was_expected(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInputError, match=r"local.decoders = '.*': expected a number from 1 to 1024, or auto"):
        icestream_run(tmp_path, "-i", "demo", "--decoders", text)


def test_a_run_without_input_says_what_to_do_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none stored in .*run \(no such folder\): .*-i/--input"):
        icestream_run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match="choose another --run-dir"):
        icestream_run(tmp_path / "file" / "run", "-i", "demo")
    with pytest.raises(BadInputError, match="choose another --run-dir"):
        icestream_run(Path("/proc/nope"), "-i", "demo")


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
def test_fresh_deletes_the_former_models_report_which_export_would_take_for_the_new_ones(tmp_path: Path) -> None:
    report = tmp_path / "evaluation" / "report.json"
    report.parent.mkdir()
    report.touch()
    assert icestream_run(tmp_path, "--fresh", "--yes", "-i", "demo").exit_code == 0
    assert not report.exists()


def test_fresh_without_a_terminal_needs_yes(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(BadInputError, match="no terminal to ask on: add --yes"):
        icestream_run(tmp_path, "--fresh", "-i", "demo")
    assert (tmp_path / "checkpoints").exists()


@pytest.mark.process
@pytest.mark.parametrize(("answer", "deleted"), [(True, True), (False, False)])
def test_fresh_asks_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bool, deleted: bool) -> None:
    fill(tmp_path)
    monkeypatch.setattr("icestream.commands.fresh._can_ask", lambda: True)
    monkeypatch.setattr("click.confirm", lambda question: answer)
    if answer:
        assert icestream_run(tmp_path, "--fresh", "-i", "demo").exit_code == 0
    else:
        with pytest.raises(BadInputError, match="nothing was deleted"):
            icestream_run(tmp_path, "--fresh", "-i", "demo")
    assert (tmp_path / "checkpoints").exists() is not deleted


@pytest.mark.process
def test_fresh_has_nothing_to_ask_in_a_new_directory(tmp_path: Path) -> None:
    assert icestream_run(tmp_path / "run", "--fresh", "-i", "demo").exit_code == 0


def test_fresh_without_an_input_deletes_nothing(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "config.json").write_text('{"input": ["demo"]}')
    with pytest.raises(BadInputError, match="--fresh forgets"):
        icestream_run(tmp_path, "--fresh", "--yes")
    assert (tmp_path / "checkpoints").exists()


@pytest.mark.process
@pytest.mark.parametrize("place", ["", "checkpoints", "checkpoints/best.pt"])
def test_fresh_does_not_delete_what_the_run_is_to_start_from(tmp_path: Path, place: str) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "checkpoints" / "best.pt").touch()
    (tmp_path / "link").symlink_to(run_dir)
    with pytest.raises(BadInputError, match=r"--fresh would delete .*, which the run is to start from"):
        icestream_run(run_dir, "--fresh", "--yes", "-i", "demo", "--start-from", str(tmp_path / "link" / place))
    assert (run_dir / "checkpoints" / "best.pt").exists()
    (tmp_path / "other").touch()
    other = str(tmp_path / "other")
    assert icestream_run(run_dir, "--fresh", "--yes", "-i", "demo", "--start-from", other).exit_code == 0


@pytest.mark.process
def test_all_files_of_a_run_are_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    assert icestream_run(tmp_path / "runs" / "one", "-i", "demo").exit_code == 0
    made = [tmp_path / "runs", *(tmp_path / "runs").rglob("*")]
    assert {path.name for path in made} > {
        "one",
        "config.json",
        "summary.json",
        "status",
        "trainer.json",
        "trainer.log",
    }
    assert [path for path in made if path.stat().st_mode & 0o077] == []


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


@pytest.mark.process
def test_a_second_run_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    with RunLock(tmp_path, "run", "icestream run"), pytest.raises(BadInputError, match="the run is in use by"):
        icestream_run(tmp_path, "-i", "demo")
    assert icestream_run(tmp_path, "-i", "demo").exit_code == 0


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("data/run?.parquet", "data/run?.parquet"),
        ("pelican://osg-htc.org/data/run?.parquet", "pelican://osg-htc.org/data/run?.parquet"),
        ("https://me:secret@host/a.parquet", "https://…@host/a.parquet"),
        ("https://host/a.parquet?authz=Bearer/secret", "https://host/a.parquet?…"),
    ],
)
def test_an_input_is_shown_without_its_secrets(given: str, shown: str) -> None:
    assert without_secrets(given) == shown


@pytest.mark.process
def test_the_number_of_trainers_may_be_another_one_at_each_start(tmp_path: Path) -> None:
    # Once one trainer has ended the others get so long, and a busy machine may start them one after the other.
    patient = ("--set", "local.stop_timeout_s=60")
    for trainers in (3, 1, 2):
        result = icestream_run(tmp_path, "-i", "demo", "--trainers", str(trainers), *patient)
        assert result.exit_code == 0, result.output
        assert f", {trainers} trainers;" in result.output if trainers > 1 else ", trainer;" in result.output
        assert json.loads((tmp_path / "config.json").read_text())["local"]["trainers"] == trainers


def test_trainers_that_can_not_share_the_shards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"3 trainers can't share stream\.shards = 2 evenly"):
        icestream_run(tmp_path, "-i", "demo", "--trainers", "3", "--set", "stream.shards=2")


def test_more_trainers_than_can_share_a_shard_are_refused_with_the_number_of_shards_that_is_needed(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadInputError, match=r"at most 16 share one; set stream\.shards=2 or more$"):
        icestream_run(tmp_path, "-i", "demo", "--trainers", "17")


def test_one_slot_for_several_trainers_is_refused(tmp_path: Path) -> None:
    """Else one of them would wait for ever for a unit while the other one holds the only slot."""
    with pytest.raises(BadInputError, match=r"stream\.slots = 1: several trainers of a shard need 2 or more"):
        icestream_run(tmp_path, "-i", "demo", "--trainers", "2", "--set", "stream.slots=1")


def test_lanes_are_refused_with_what_replaces_them(tmp_path: Path) -> None:
    with pytest.raises(
        BadInputError, match=r"stream\.lanes is gone: all trainers of a shard share one stream.*leave it"
    ):
        icestream_run(tmp_path, "-i", "demo", "--trainers", "2", "--set", "stream.lanes=2")
