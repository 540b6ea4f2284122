"""States of ranges in `icestream ranges`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from common.plan import SourceFile
from common.status import TrainerStatus
from common.status_files import write_status
from icestream.commands.ranges import ranges
from services.config.root import load_config, store_config
from services.fetcher.inventory.ledger import LEDGER_FILE, Ledger
from services.fetcher.inventory.ranges import make_ranges


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Run of two ranges, both listed, whose newest checkpoint is in the first."""
    flags = {"input": ("/data/{range}/*.parquet",), "fetcher.ranges": "0:1000:1000"}
    config = load_config({}, flags=flags, environment={})
    store_config(tmp_path, config)
    ledger = Ledger(tmp_path / LEDGER_FILE, "aa" * 16)
    for one in make_ranges(config.input, config.fetcher.ranges):
        ledger.freeze(one, [SourceFile(f"/data/{one.name}/a.parquet", 10)])
    ledger.close()
    return tmp_path


def states(run_dir: Path) -> list[str]:
    told = json.loads(CliRunner().invoke(ranges, ["--run-dir", str(run_dir), "--json"]).output)
    return [line["state"] for line in told["ranges"]]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (TrainerStatus(state="training"), ["running", "listed"]),
        (TrainerStatus(state="stopped"), ["stopped", "listed"]),
        (TrainerStatus(state="finished", step=40, max_steps=40), ["stopped", "listed"]),
    ],
)
def test_the_current_range_is_running_only_while_somebody_trains(
    run_dir: Path, status: TrainerStatus, expected: list[str]
) -> None:
    assert states(run_dir)[0] == "running"  # no status yet
    write_status(run_dir, "trainer", status)
    assert states(run_dir) == expected


def test_a_finished_run_says_so(run_dir: Path) -> None:
    write_status(run_dir, "trainer", TrainerStatus(state="finished", step=40))
    assert states(run_dir)[0] == "done"
    output = CliRunner().invoke(ranges, ["--run-dir", str(run_dir)]).output
    assert output.splitlines()[-1].startswith("finished at step 40: ")
