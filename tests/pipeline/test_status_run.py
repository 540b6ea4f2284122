"""`icestream status` beside a real run, until it is killed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from runs import COUNTING, Processes, settings
from showers import Showers

from icestream.commands.status.command import status

pytestmark = pytest.mark.slow


def test_status_follows_a_run_and_says_that_it_was_killed(processes: Processes, showers: Showers) -> None:
    def told() -> dict[str, Any]:
        result = CliRunner().invoke(status, [str(processes.run_dir), "--json"])
        found: dict[str, Any] = json.loads(result.output) if result.exit_code == 0 else {}
        return found

    def reached() -> dict[str, Any] | None:
        now = told()
        return now if now.get("checkpoint") and now["state"] == "running" and len(now["processes"]) == 5 else None

    run = processes.start("run", *showers.input, *settings(*COUNTING), "--epochs", "0", "--decoders", "2")
    running = processes.wait_in(run, reached, "a running run with a checkpoint")
    assert running["step"] > 0
    assert running["bottleneck"]
    assert {one["name"] for one in running["processes"]} == {"run", "fetcher", "decoder-0", "decoder-1", "trainer"}
    processes.kill_all()
    processes.assert_nothing_is_left()
    killed = told()
    assert killed["state"] == "killed"
    assert killed["step"] >= running["step"]
    assert killed["processes"] == []
    assert killed["exit_code"] is None

    assert processes.run("run", "--max-steps", str(killed["step"] + 50))[0] == 0
    finished = told()
    assert (finished["state"], finished["exit_code"]) == ("finished", 0)
    assert finished["step"] == killed["step"] + 50 or finished["step"] >= killed["checkpoint"]["step"]
