"""A run whose outputs are copied to a federation, and that comes back from there."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from federation.federation import Federation
from runs import Processes, kill, settings
from showers import Undisturbed

pytestmark = pytest.mark.slow


def test_a_run_goes_on_from_checkpoints_that_were_brought_back(
    processes: Processes, federation: Federation, command: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    token = federation.issuer.mint("storage.read:/ storage.create:/ storage.modify:/")
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(token)
    environment = federation.environment() | {"ICESTREAM_TOKEN__FILE": str(tmp_path / "token")}
    place = f"/private/outputs-{os.getpid()}-{federation.kind}"
    flags = [*command, *settings(f"outputs.destination={federation.url(place)}", "outputs.every_s=0.2")]
    folder = federation.root / place.strip("/")

    def copied() -> list[str]:
        try:
            files = json.loads((folder / "icestream-outputs.json").read_text())["files"]
        except (FileNotFoundError, ValueError):
            return []
        return [name for name in files if name.startswith("checkpoints/")]

    run = processes.start_and_reach(5, flags, before=undisturbed.steps, environment=environment)
    processes.wait_in(run, copied, "the first copy")
    processes.kill_all()
    processes.assert_nothing_is_left()
    shutil.rmtree(processes.run_dir / "checkpoints")
    exit_code, output = processes.run("run", *flags, environment=environment)
    assert exit_code == 0, output
    assert "was brought back from pelican://localhost:" in output
    assert "resumes from step-" in processes.log("trainer")
    undisturbed.assert_same(processes)
    newest = f"checkpoints/step-{undisturbed.steps:09d}.pt"
    assert newest in copied(), "the last copies wait for the end"
    assert (folder / newest).read_bytes() == (processes.run_dir / newest).read_bytes()
    for path in [*processes.run_dir.rglob("*"), *(process.output_path for process in processes.started)]:
        assert not path.is_file() or token.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("started_federation", ["light"], indirect=True)
def test_a_destination_that_fails_and_a_copier_that_is_killed_do_not_end_the_run(
    processes: Processes, federation: Federation, command: list[str], undisturbed: Undisturbed
) -> None:
    destination = federation.url("/private/nobody-may")  # without a token
    flags = [*command, *settings(f"outputs.destination={destination}", "outputs.every_s=0.2", "outputs.final_sync_s=1")]
    environment = federation.environment()
    run = processes.start("run", *flags, environment=environment)
    processes.wait_for(lambda: run.ended() or "no checkpoint in" in run.output(), "the refusal")
    assert processes.finish(run) == 2, "what is there can't be known: nothing is begun anew"
    flags = [*command, *settings(f"outputs.destination={processes.logs / 'there'}", "outputs.every_s=0.2")]
    run = processes.start_and_reach(5, flags, before=undisturbed.steps)
    pid = processes.the_pid("outputs")
    kill(pid, signal.SIGKILL)
    processes.wait_in(run, lambda: pid not in processes.pids("outputs") and processes.pids("outputs"), "its restart")
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    undisturbed.assert_same(processes)
    assert (processes.logs / "there" / f"checkpoints/step-{undisturbed.steps:09d}.pt").exists()


def put_a_file_in_place_of(folder: Path) -> None:
    """While somebody writes there, who may make the folder again at any moment."""
    for attempt in itertools.count():
        folder.rename(folder.with_name(f"gone-{attempt}"))
        try:
            folder.open("x").close()
        except FileExistsError:
            continue
        return


def test_a_destination_that_goes_away_in_mid_run_is_told_and_the_run_ends_well(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    there = processes.logs / "there"
    flags = [*command, *settings(f"outputs.destination={there}", "outputs.every_s=0.2", "outputs.final_sync_s=3")]
    run = processes.start_and_reach(5, flags, before=undisturbed.steps)
    processes.wait_in(run, lambda: list(there.glob("checkpoints/*.pt")), "the first copy")
    put_a_file_in_place_of(there)
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    undisturbed.assert_same(processes)
    assert "the newest outputs were not copied" in run.output()
