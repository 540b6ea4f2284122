"""Ctrl-C, a full disk, what can and can't be changed when a run goes on, and files that are damaged meanwhile."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from runs import COUNTING, Processes, settings
from showers import EVENTS_PER_FILE, Showers, Undisturbed

pytestmark = pytest.mark.slow


def test_ctrl_c_writes_a_checkpoint_and_the_same_command_goes_on_exactly_there_and_no_other_does(
    processes: Processes, showers: Showers, command: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Meanwhile a second run in the directory is refused; a file that is added to the inputs changes no plan."""
    first, second, _ = showers.write(tmp_path / "data")
    command = ["-i", str(first.parent), *command[len(showers.input) :]]
    never = settings("trainer.checkpoint_every=1000000")
    run = processes.start("run", *command, *never, environment=processes.brake(5))
    processes.wait_in(run, lambda: processes.trainer.step >= 5, "step 5")
    exit_code, output = processes.run("run", *command, *never)
    assert exit_code == 2
    assert "the run is in use by" in output.splitlines()[-1]
    assert "(icestream run, process" in output.splitlines()[-1]
    exit_code, output = processes.run("decoder", *settings("seed=99"))
    assert exit_code == 2
    assert "seed or stream settings are not those of the run" in output.splitlines()[-1]
    newcomer = first.with_name("bundles_00.parquet")  # sorts between the others
    newcomer.write_bytes(second.read_bytes())
    run.send(signal.SIGINT)
    assert processes.finish(run) == 130, processes.report()
    processes.assert_nothing_is_left()

    summary, checkpoint, audit = processes.summary(), processes.checkpoint(), processes.audit()
    assert summary["exit_status"] == "interrupted"
    assert summary["adds_up"]
    assert 5 <= checkpoint["step"] == summary["steps"] < undisturbed.steps
    assert 0 < len(audit) < len(undisturbed.audit)
    assert audit == undisturbed.audit[: len(audit)]

    exit_code, output = processes.run("run", "-i", str(first))  # all else as stored
    assert exit_code == 2
    assert "belongs to another plan" in output.splitlines()[-1]
    assert "Traceback" not in output + processes.log("trainer")
    assert (processes.checkpoint_step(), processes.audit()) == (checkpoint["step"], audit)

    processes.train()  # with what is stored: the refused change is not
    assert f"resumes from step-{checkpoint['step']:09d}.pt" in processes.log("trainer")
    undisturbed.assert_same(processes)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for size_bytes in (1 << 16, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size_bytes))


@pytest.mark.root
@pytest.mark.parametrize("small_disk", [8], indirect=True)
def test_a_full_disk_stops_the_run_with_its_name_and_the_run_goes_on_once_there_is_space(
    small_disk: Path, processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    processes.run_dir = small_disk / "run"
    run = processes.start_and_reach(5, command, before=undisturbed.steps)
    ballast = small_disk / "ballast"
    fill(ballast)
    processes.release()
    assert processes.finish(run) == 2, processes.report()
    assert "the disk is full" in run.output().splitlines()[-1]
    assert "Traceback" not in run.output() + "".join(processes.log(name) for name in ("fetcher", "trainer"))
    processes.assert_nothing_is_left()

    ballast.unlink()
    step = processes.checkpoint()["step"]  # the newest checkpoint is a whole one
    assert 5 <= step < undisturbed.steps
    assert not list((processes.run_dir / "checkpoints").glob("*.part"))
    processes.train(*command)
    assert f"resumes from step-{step:09d}.pt" in processes.log("trainer")
    undisturbed.assert_same(processes)


STOP_AT_STEP = 3
OPEN_UNIT = 1
"""Units have two batches: of this one, one was trained."""


def overwrite_data(path: Path) -> None:
    """Zeros in place of every column chunk. Footer, size and number of rows stay."""
    metadata = pq.read_metadata(path)
    with path.open("r+b") as file:
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                file.seek(column.dictionary_page_offset or column.data_page_offset)
                file.write(bytes(column.total_compressed_size))


def test_no_event_is_trained_twice_when_a_file_is_damaged_while_one_of_its_units_is_half_trained(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    paths = showers.write(tmp_path / "data")[:2]
    files = [argument for path in paths for argument in ("-i", str(path))]
    command = [*files, *settings(*COUNTING), "--epochs", "1"]
    processes.train(*command, *settings(f"trainer.max_steps={STOP_AT_STEP}"))
    before = processes.audit()
    events = {unit: 0 for unit in (0, OPEN_UNIT)}
    for line in map(json.loads, before):
        events[line["unit"]] += line["events"]
    assert 0 < events[OPEN_UNIT] < events[0], "it is half trained"

    overwrite_data(paths[1])
    summary = processes.train(*command, *settings("trainer.max_steps=0"))

    summary.assert_read(2 * EVENTS_PER_FILE)
    audit = processes.audit()
    assert audit[: len(before)] == before
    assert [line for line in map(json.loads, audit[len(before) :]) if line["unit"] <= OPEN_UNIT] == []
    assert sum(json.loads(line)["events"] for line in audit) == summary["events_trained"]
    (told,) = (line for line in summary["quarantined"] if line.startswith(f"unit {OPEN_UNIT} has changed"))
    assert f"{events[OPEN_UNIT]} of its events were trained, {events[0] - events[OPEN_UNIT]} are quarantined" in told
    assert told in processes.log("trainer")
    assert processes.fetcher.files_bad == 1
