"""R trainers take C lanes: what is trained in each lane, in which order, does not depend on R."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import is_stopped
from forked import Forked
from rank import HOLD_VARIABLE
from runs import PACKAGE_ROOT, Process, Processes, kill, settings

pytestmark = pytest.mark.slow

LANES = ("stream.lanes=2", "epochs=2")


def start_rank(processes: Processes, rank: int, ranks: int, **variables: str) -> Process:
    output_path = processes.logs / f"{len(processes.started)}-rank.log"
    program = str(Path(__file__).with_name("rank.py"))
    command = [sys.executable, program, "trainer", "--run-dir", str(processes.run_dir), str(rank), str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    with output_path.open("wb") as output:
        popen = Forked(command, output=output.fileno(), environment=environment, cwd=PACKAGE_ROOT)
    return processes.add(popen, output_path)


def by_lane(lines: list[str]) -> dict[int, list[str]]:
    lanes: dict[int, list[str]] = {}
    for line in lines:
        lanes.setdefault(json.loads(line)["lane"], []).append(line)
    return lanes


@pytest.fixture(scope="module")
def of_one(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, list[str]]]:
    """Each lane's audit where one real trainer takes both."""
    folder = tmp_path_factory.mktemp("one")
    processes = Processes(folder / "run", folder)
    try:
        summary = processes.train(*command[:-2], *settings(*LANES))
        assert summary["adds_up"]
        yield by_lane(processes.audit())
    finally:
        processes.end()


def test_one_trainer_trains_both_lanes_in_the_order_of_their_units(of_one: dict[int, list[str]]) -> None:
    assert sorted(of_one) == [0, 1]
    for lane, lines in of_one.items():
        places = [(json.loads(line)["unit"], json.loads(line)["microbatch"]) for line in lines]
        assert places == sorted(places)
        assert {unit % 2 for unit, _ in places} == {lane}


@pytest.mark.parametrize(("decoders", "slots"), [(1, 3), (3, 8), (2, 2)])
def test_two_trainers_get_lane_by_lane_what_one_gets(
    processes: Processes, command: list[str], of_one: dict[int, list[str]], decoders: int, slots: int
) -> None:
    fetcher = processes.start("fetcher", *command[:-2], *settings(*LANES, f"stream.slots={slots}"))
    others = [fetcher, *(processes.start("decoder") for _ in range(decoders))]
    processes.wait_in(fetcher, lambda: processes.fetcher.state != "listing", "the listing")
    ranks = [start_rank(processes, rank, 2) for rank in range(2)]
    for process in (*ranks, *others):
        assert processes.finish(process) == 0, processes.report()
    for rank in range(2):
        assert by_lane((processes.run_dir / f"audit-{rank}" / "audit.jsonl").read_text().splitlines()) == {
            rank: of_one[rank]
        }


def test_a_rank_that_is_killed_and_started_again_goes_on_where_it_was(
    processes: Processes, command: list[str], of_one: dict[int, list[str]]
) -> None:
    fetcher = processes.start("fetcher", *command[:-2], *settings(*LANES))
    decoder = processes.start("decoder")
    processes.wait_in(fetcher, lambda: processes.fetcher.state != "listing", "the listing")
    other, victim = start_rank(processes, 0, 2), start_rank(processes, 1, 2, **{HOLD_VARIABLE: "1"})
    processes.wait_in(fetcher, lambda: is_stopped(victim.pid), "its first batch")
    assert (processes.run_dir / "rank-1.json").exists()
    kill(victim.pid)
    processes.finish(victim)
    again = start_rank(processes, 1, 2)
    for process in (other, again, fetcher, decoder):
        assert processes.finish(process) == 0, processes.report()
    for rank in range(2):
        assert by_lane((processes.run_dir / f"audit-{rank}" / "audit.jsonl").read_text().splitlines()) == {
            rank: of_one[rank]
        }
