"""Data and run directories of the end-to-end tests."""

from __future__ import annotations

import contextlib
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

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
    Server,
    Showers,
    Undisturbed,
    carry_out_once,
    undisturbed_run,
    write_pulses,
)

from workloads.muons.simulator.write import simulate


@pytest.fixture(scope="session")
def showers(tmp_path_factory: pytest.TempPathFactory, shared_temp: Path) -> Showers:
    folder = tmp_path_factory.mktemp("showers")
    arguments = [str(folder / "simulated"), "--preset", "bench", "--events", str(NUM_FILES * EVENTS_PER_FILE)]
    result = CliRunner().invoke(simulate, [*arguments, "--files", str(NUM_FILES), "--seed", "1"])
    assert result.exit_code == 0, result.output
    tables = tuple(pq.read_table(path) for path in sorted((folder / "simulated").rglob("*.parquet")))
    # The same folder for all workers: a checkpoint names its files.
    data = Showers(shared_temp / "showers" / "input", tables)
    carry_out_once(shared_temp / "showers", lambda: data.write(data.folder))
    return data


@pytest.fixture(scope="session")
def command(showers: Showers) -> list[str]:
    """Arguments of the run that `undisturbed` is the outcome of."""
    return [*showers.input, *settings(*SMALL_STREAM), "--epochs", str(EPOCHS)]


@pytest.fixture(scope="session")
def shared_temp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of all workers of this session."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def undisturbed(command: list[str], shared_temp: Path) -> Undisturbed:
    return undisturbed_run(shared_temp / "undisturbed", command)


@pytest.fixture(scope="session")
def direction(tmp_path_factory: pytest.TempPathFactory, shared_temp: Path) -> Scene:
    folder = tmp_path_factory.mktemp("direction")
    events, pulses = write_pulses(folder / "input")
    command = ["-i", str(folder / "input"), *settings(*PULSES_STREAM), "--epochs", str(EPOCHS)]
    return Scene("direction", events, pulses, command, undisturbed_run(shared_temp / "undisturbed-direction", command))


@pytest.fixture(scope="session", params=["muons", "direction"])
def scene(request: pytest.FixtureRequest) -> Scene:
    """A run of each workload."""
    if request.param == "muons":
        showers, command, undisturbed = map(request.getfixturevalue, ("showers", "command", "undisturbed"))
        return Scene("muons", showers.events, showers.muons, command, undisturbed)
    found: Scene = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "served"
    folder.mkdir()
    told = Server("", folder)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def do_GET(self) -> None:
            name = urlsplit(self.path).path.lstrip("/")
            told.gets[self.path] += 1
            if told.refuse.get(name):
                self.send_error(told.refuse[name].pop(0))
            else:
                with contextlib.suppress(ConnectionError):
                    super().do_GET()

        def log_message(self, *arguments: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web_server:
        told.url = f"http://127.0.0.1:{web_server.server_address[1]}"
        thread = threading.Thread(target=web_server.serve_forever)
        thread.start()
        yield told
        web_server.shutdown()
        thread.join()


def shared_memory() -> set[Path]:
    """Files in shared memory; but not semaphores of multiprocessing, which pools of other tests have at any time."""
    return {path for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.mp-")}


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of as many MiB as the parameter says. Without the right to mount one the test is skipped."""
    folder = tmp_path / "small_disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        assert not os.environ.get("CI"), f"CI has to be able to mount a file system: {done.stderr}"
        pytest.skip(f"can't mount a small file system here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """The run directory of the test. At its end nothing of the run may be left."""
    before = shared_memory()
    processes = Processes(tmp_path / "run", tmp_path)
    try:
        yield processes
        processes.assert_nothing_is_left()
        assert shared_memory() <= before
    finally:
        processes.end()
