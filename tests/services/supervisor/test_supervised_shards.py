"""Runs with several shards, with stand-ins for the processes (stand_ins.py)."""

from __future__ import annotations

import pytest
from stand_ins import CTRL_C, Stage, started, started_times

from common.run_dir import shard_dir
from common.status import FetcherStatus
from common.status_files import write_status

pytestmark = pytest.mark.process

SHARDS = (0, 2)
EVERYONE = ("fetcher-000", "fetcher-002", "decoder-000-0", "decoder-002-0", "trainer")


def tell_wanted(stage: Stage, shard: int, wanted: int) -> None:
    """Status of a shard's fetcher that knows its first decoder."""
    pids = (stage.processes.pids[f"decoder-{shard:03d}-0"],)
    status = FetcherStatus(pid=stage.processes.pids[f"fetcher-{shard:03d}"], decoders_wanted=wanted, decoder_pids=pids)
    write_status(shard_dir(stage.run_dir, shard), "fetcher", status)


def test_each_shard_that_runs_here_has_a_fetcher_and_decoders(stage: Stage) -> None:
    stage.script = [(started(*EVERYONE), CTRL_C)]
    outcome = stage.run(decoders=1, shards=SHARDS)
    assert outcome.exit_status == "interrupted"
    assert stage.seen == set(EVERYONE)
    stopped = [name for name, what in stage.story() if what == "SIGTERM"]
    assert stopped[0] == "trainer"
    assert {name.partition("-")[0] for name in stopped[1:3]} == {"decoder"}
    assert sorted(stopped[3:]) == ["fetcher-000", "fetcher-002"]


@pytest.mark.parametrize("name", ["fetcher-002", "decoder-002-0"])
def test_the_fetcher_and_the_last_decoder_of_a_shard_may_not_leave(stage: Stage, name: str) -> None:
    stage.behaviours = {name: "leaves once"}
    stage.script = [(started_times(name, 2), lambda: None), (started(*EVERYONE), CTRL_C)]
    outcome = stage.run(decoders=1, shards=SHARDS)
    assert sum(outcome.restarts.values()) == outcome.restarts[name.partition("-")[0]] == 1


def test_auto_starts_the_decoders_that_each_fetcher_wants(stage: Stage) -> None:
    stage.script = [
        (started(*EVERYONE), lambda: tell_wanted(stage, 2, 3)),
        (started("decoder-002-1", "decoder-002-2"), CTRL_C),
    ]
    stage.run(decoders="auto", shards=SHARDS)
    assert stage.seen == {*EVERYONE, "decoder-002-1", "decoder-002-2"}
