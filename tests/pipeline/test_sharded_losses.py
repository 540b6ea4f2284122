"""Promise 17: the sum over shards holds although what a fetcher knew of its files is gone, and files with it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from runs import COUNTING, Processes, settings
from showers import Showers

from common.run_dir import INVENTORY_FOLDER

pytestmark = pytest.mark.slow

FILES = 6
"""Files of the data set, in one block of each of two shards."""
SHARDS = ("stream.shards=2", "stream.lanes=4", "stream.block_files=3", "stream.slots=4", "local.decoders=1")


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
    processes.train(*command, "--max-steps", "30")
    assert 0 < processes.summary()["events_trained"] < showers.events, "both blocks are begun, and not at their end"
    if not before:
        victim.write_bytes(victim.read_bytes()[:-100])
    forget_files(processes)
    processes.train(*command, "--max-steps", "0")
    processes.summary().assert_read(2 * showers.events)
    assert any(str(victim) in line for line in processes.summary()["quarantined"])
    assert (processes.run_dir / INVENTORY_FOLDER).is_dir()
