"""Files from elsewhere: staged within the disk budget, evicted behind the checkpoint, and no secret is told."""

from __future__ import annotations

import contextlib
import http.server
import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from runs import COUNTING, SMALL_STREAM, Processes, settings
from showers import Showers

pytestmark = pytest.mark.slow

SECRET = "s3cr3t-t0ken"


@dataclass
class Server:
    """A web server on the loopback interface that serves one folder, and refuses what it is told to refuse."""

    url: str
    folder: Path
    refuse: dict[str, list[int]] = field(default_factory=dict)
    """Name -> status codes of the next GET requests for it."""
    gets: Counter[str] = field(default_factory=Counter)
    """Requests answered, by path and query."""


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


def bytes_under(folder: Path) -> int:
    """Disk that the files of a folder take, while others come and go. Links to one file are one file."""
    sizes_bytes, before = _sizes_bytes(folder), None
    while sizes_bytes != before:  # files that were never there at the same time are not counted together
        sizes_bytes, before = _sizes_bytes(folder), sizes_bytes
    return sum(sizes_bytes.values())


def _sizes_bytes(folder: Path) -> dict[int, int]:
    sizes_bytes: dict[int, int] = {}
    for parent, _, names in os.walk(folder):  # unlike rglob it passes over folders that go meanwhile
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = Path(parent, name).stat()
                sizes_bytes[status.st_ino] = status.st_size
    return sizes_bytes


def urls(server: Server, names: list[str], query: str = "") -> list[str]:
    """The files as inputs of a command."""
    return [argument for name in names for argument in ("-i", f"{server.url}/{name}{query}")]


def test_remote_files_pass_through_a_cache_that_never_exceeds_its_budget(
    processes: Processes, showers: Showers, server: Server
) -> None:
    paths = showers.write(server.folder)
    paths += [path.rename(path.with_name(f"more_{path.name}")) for path in showers.write(server.folder / "more")]
    names = [str(path.relative_to(server.folder)) for path in paths]
    sizes = [path.stat().st_size for path in paths]
    budget_bytes = int(2.5 * max(sizes))
    assert sum(sizes) > 2 * budget_bytes

    small = settings(*SMALL_STREAM, "stream.block_files=1", f"fetcher.disk_budget_gib={budget_bytes / 2**30}")
    run = processes.start("run", *urls(server, names), *small, "--epochs", "2")
    most_bytes = 0

    def watched_end() -> bool:
        nonlocal most_bytes
        most_bytes = max(most_bytes, bytes_under(processes.run_dir / "cache"))
        assert processes.fetcher.bytes_staged <= budget_bytes
        return run.ended()

    processes.wait_for(watched_end, "the end of the run")
    assert run.popen.returncode == 0, processes.report()
    assert 0 < most_bytes <= budget_bytes
    assert bytes_under(processes.run_dir / "cache") == 0  # all is behind the last checkpoint
    processes.summary().assert_read(2 * 2 * showers.events)


def test_a_budget_that_holds_no_block_is_told_at_once(processes: Processes, showers: Showers, server: Server) -> None:
    names = [path.name for path in showers.write(server.folder)]
    options = settings(*COUNTING, "fetcher.disk_budget_gib=1e-5")
    exit_code, output = processes.run("run", *urls(server, names), *options)
    assert exit_code == 2
    assert "holds no block of stream.block_files = 2 files" in output.splitlines()[-1]


def test_a_run_that_is_killed_while_it_stages_goes_on_without_what_was_partial(
    processes: Processes, showers: Showers, server: Server
) -> None:
    names = [path.name for path in showers.write(server.folder)]
    arguments = [*urls(server, names), *settings(*SMALL_STREAM, "stream.block_files=1"), "--epochs", "4"]
    processes.start_and_reach(5, arguments, before=200)
    processes.kill_all()
    processes.assert_nothing_is_left()
    (run_folder,) = (processes.run_dir / "cache" / "runs").iterdir()
    partial = run_folder / "parts" / "left-over.parquet"
    partial.write_bytes(b"half a file")
    processes.train(*arguments)
    assert bytes_under(processes.run_dir / "cache") == 0
    processes.summary().assert_read(4 * showers.events)


def test_a_server_that_fails_is_asked_again_and_a_file_it_refuses_is_quarantined(
    processes: Processes, showers: Showers, server: Server
) -> None:
    names = [path.name for path in showers.write(server.folder)]
    server.refuse[names[0]] = [503, 500]
    server.refuse[names[1]] = [403] * 100
    summary = processes.train(*urls(server, names), *settings(*COUNTING))
    assert summary.events == {"trained": showers.tables[0].num_rows + showers.tables[2].num_rows}
    (reason,) = summary["quarantined"]
    assert reason.startswith(f"{server.url}/{names[1]}: ")
    assert "403" in reason


def test_no_secret_of_a_url_is_told_anywhere(processes: Processes, showers: Showers, server: Server) -> None:
    names = [path.name for path in showers.write(server.folder)]
    server.refuse[names[1]] = [403] * 100
    (server.folder / "broken.parquet").write_bytes(b"PAR1 and no more")
    inputs = urls(server, [*names, "broken.parquet"], f"?token={SECRET}")
    options = settings(*COUNTING, "max_particles_per_event=100")  # some outliers
    summary = processes.train(*inputs, *options)
    assert summary["events_outlier"] > 0
    assert len(summary["quarantined"]) == 2
    assert any(SECRET in path for path in server.gets), "the token was needed, and sent"
    assert_not_told(processes)

    for bad in (f"{server.url}/none.parquet?token={SECRET}", f"http://user:{SECRET}@127.0.0.1:1/x.parquet"):
        exit_code, output = processes.run("run", "-i", bad, "--fresh", "--yes", *settings(*COUNTING))
        assert exit_code == 2
        assert "Traceback" not in output + processes.log("fetcher")
        assert_not_told(processes)


def assert_not_told(processes: Processes) -> None:
    """The secret is in no output, file name or file of the run, but for the two that only their owner can read."""
    outputs = [process.output_path for process in processes.started]
    for path in [*outputs, *processes.run_dir.rglob("*")]:
        assert SECRET not in path.name
        if path.name in ("config.json", "ledger.sqlite"):
            assert path.stat().st_mode & 0o077 == 0
        elif path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
