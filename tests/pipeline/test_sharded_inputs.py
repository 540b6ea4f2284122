"""Promise 17: the sum over shards holds although files change, and a fetcher has lost what it knew of them."""

from __future__ import annotations

import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from runs import COUNTING, SMALL_STREAM, Processes, settings
from showers import Showers

pytestmark = pytest.mark.slow

FILES = 6
"""Files of the data set, in one block of each of two shards."""
SHARDS = ("stream.shards=2", "stream.block_files=3", "stream.slots=4", "local.decoders=1")


def write(folder: Path, showers: Showers) -> list[Path]:
    """Files whose row groups differ in size, so that a unit is another one if any of them is left out."""
    folder.mkdir()
    paths = [folder / f"{number}.parquet" for number in range(FILES)]
    for number, path in enumerate(paths):
        pq.write_table(showers.tables[number % 3], path, row_group_size=130 + 30 * number)
    return paths


def forget_files(processes: Processes) -> None:
    """What a new node, or one with a damaged disk, has: no ledger."""
    for path in processes.run_dir.glob("shards/*/ledger.sqlite*"):
        path.unlink()


@pytest.mark.parametrize("before", [True, False], ids=["bad from the start", "bad in the meantime"])
def test_a_bad_file_in_a_begun_block_leaves_the_sum_right_for_fetchers_without_their_ledgers(
    processes: Processes, showers: Showers, tmp_path: Path, before: bool
) -> None:
    paths = write(tmp_path / "data", showers)
    victim = paths[2]
    if before:
        pq.write_table(pq.read_table(victim).drop_columns(["muons"]), victim)
    command = ["-i", str(tmp_path / "data"), *settings(*COUNTING, *SHARDS)]
    processes.train(*command, "--max-steps", "15")
    assert 0 < processes.summary()["events_trained"] < showers.events, "both blocks are begun, and not at their end"
    if not before:
        victim.write_bytes(victim.read_bytes()[:-100])
    forget_files(processes)
    processes.train(*command, "--max-steps", "0")
    processes.summary().assert_read(2 * showers.events)
    assert any(str(victim) in line for line in processes.summary()["quarantined"])


@pytest.mark.parametrize(("stream", "trainers"), [(COUNTING, "1"), (SMALL_STREAM, "2")], ids=["one", "two"])
def test_a_new_plan_of_other_inputs_begins_in_all_shards(
    processes: Processes, showers: Showers, tmp_path: Path, stream: tuple[str, ...], trainers: str
) -> None:
    paths = write(tmp_path / "data", showers)
    of_stream = [*settings(*stream, *SHARDS), "--trainers", trainers]
    processes.train("-i", str(tmp_path / "data"), *of_stream, "--max-steps", "10")
    before = processes.summary()["events_read"]
    paths[0].rename(tmp_path / "alone.parquet")
    processes.train("-i", str(tmp_path / "alone.parquet"), *of_stream, "--max-steps", "0", "--new-plan")
    processes.summary().assert_read(before + showers.events // 3)


def test_an_endless_run_without_an_event_to_train_ends_although_one_trainer_reads_all_shards(
    processes: Processes, showers: Showers
) -> None:
    command = [*showers.input, *settings(*COUNTING, *SHARDS, "stream.block_files=1", "stream.held_out=0.9999999")]
    exit_code, output = processes.run("run", *command, "--epochs", "0")
    assert exit_code == 2
    assert "no event of a whole epoch can be trained" in output


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """URL of a web server for the folder."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            return

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_disk_budget_that_is_too_small_for_one_of_the_shards_ends_the_run_with_one_line(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    """The other one has its share of the batch, of three small files, and waits."""
    folder = tmp_path / "data"
    folder.mkdir()
    paths = [folder / f"{number}.parquet" for number in range(6)]
    for number, path in enumerate(paths):
        pq.write_table(showers.tables[0].slice(0, (600, 1200)[number % 2]), path, row_group_size=200)
    small, large = (max(path.stat().st_size for path in paths[first::2]) for first in range(2))
    budget_bytes = int(1.9 * large)
    assert 3 * small < budget_bytes < 2 * min(path.stat().st_size for path in paths[1::2])
    of_stream = ("stream.batch_events=3000", "stream.block_files=1", "stream.shuffle=false")
    budget = f"fetcher.disk_budget_gib={2 * budget_bytes / 2**30}"
    with served(folder) as url:
        names = [word for path in paths for word in ("-i", f"{url}/{path.name}")]
        exit_code, output = processes.run("run", *names, *settings(*COUNTING, *SHARDS, *of_stream, budget))
    assert exit_code == 2
    assert "Traceback" not in output
    last = output.splitlines()[-1]
    assert last.startswith("Error: fetcher-001: fetcher.disk_budget_gib = ")
    assert "of which each of the 2 shards here has" in last
    assert "is too small: a batch needs more blocks than it holds" in last
