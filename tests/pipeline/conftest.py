"""Data and run directories of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from runs import SMALL_STREAM, Processes, settings
from showers import (
    EPOCHS,
    EVENTS_PER_FILE,
    NUM_FILES,
    PULSES_STREAM,
    Scene,
    Showers,
    Undisturbed,
    write_pulses,
)

from workloads.muons.commands.simulate import simulate


@pytest.fixture(scope="session")
def showers(tmp_path_factory: pytest.TempPathFactory) -> Showers:
    folder = tmp_path_factory.mktemp("showers")
    arguments = [str(folder / "simulated"), "--preset", "bench", "--events", str(NUM_FILES * EVENTS_PER_FILE)]
    result = CliRunner().invoke(simulate, [*arguments, "--files", str(NUM_FILES), "--seed", "1"])
    assert result.exit_code == 0, result.output
    tables = tuple(pq.read_table(path) for path in sorted((folder / "simulated").rglob("*.parquet")))
    data = Showers(folder / "input", tables)
    data.write(data.folder)
    return data


@pytest.fixture(scope="session")
def command(showers: Showers) -> list[str]:
    """Arguments of the run that `undisturbed` is the outcome of."""
    return [*showers.input, *settings(*SMALL_STREAM), "--epochs", str(EPOCHS)]


@pytest.fixture(scope="session")
def undisturbed(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    processes = Processes(folder / "run", folder)
    try:
        summary = processes.train(*command)
        return Undisturbed(summary, processes.audit(), processes.checkpoint())
    finally:
        processes.end()


@pytest.fixture(scope="session")
def direction(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("direction")
    events, pulses = write_pulses(folder / "input")
    command = ["-i", str(folder / "input"), *settings(*PULSES_STREAM), "--epochs", str(EPOCHS)]
    processes = Processes(folder / "run", folder)
    try:
        summary = processes.train(*command)
        outcome = Undisturbed(summary, processes.audit(), processes.checkpoint())
        return Scene("direction", events, pulses, command, outcome)
    finally:
        processes.end()


@pytest.fixture(scope="session", params=["muons", "direction"])
def scene(request: pytest.FixtureRequest) -> Scene:
    """A run of each workload."""
    if request.param == "muons":
        showers, command, undisturbed = map(request.getfixturevalue, ("showers", "command", "undisturbed"))
        return Scene("muons", showers.events, showers.muons, command, undisturbed)
    found: Scene = request.getfixturevalue(request.param)
    return found


def shared_memory() -> set[Path]:
    """Files in shared memory; but not semaphores of multiprocessing, which pools of other tests have at any time."""
    return {path for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.mp-")}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """The run directory of the test. At its end nothing of the run may be left."""
    before = shared_memory()
    processes = Processes(tmp_path / "run", tmp_path)
    try:
        yield processes
        processes.assert_nothing_is_left()
        assert not list(processes.run_dir.rglob("*.part"))
        assert shared_memory() <= before
    finally:
        processes.end()
