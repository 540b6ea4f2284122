"""Training that diverges: back to the last good checkpoint with the stream, and an end with a report if that is of no
use."""

from __future__ import annotations

import json

import pytest
from runs import SMALL_STREAM, Processes, settings
from showers import Server, Showers, Undisturbed, bytes_under, urls

from services.trainer.commits import not_finite

pytestmark = pytest.mark.slow


def health_lines(processes: Processes) -> list[dict[str, object]]:
    return [json.loads(line) for line in (processes.run_dir / "health.jsonl").read_text().splitlines()]


def lines_of_updates(processes: Processes) -> list[dict[str, object]]:
    """Lines about updates that were left out. These small networks hardly learn: later a line says that, too."""
    return [line for line in health_lines(processes) if "left out" in str(line["reasons"])]


def test_files_that_were_evicted_are_staged_again_when_training_goes_back_behind_them(
    processes: Processes, showers: Showers, server: Server
) -> None:
    names = [path.name for path in showers.write(server.folder)]
    sizes = [(server.folder / name).stat().st_size for name in names]
    options = settings(
        *SMALL_STREAM,
        "stream.block_files=1",
        f"fetcher.disk_budget_gib={2.5 * max(sizes) / 2**30}",
        "trainer.log_every=1",
    )
    arguments = [*urls(server, names), *options]
    run = processes.start("run", *arguments, environment={"DIVERGE": "27", "WARN": "1"})
    assert processes.finish(run) == 0, processes.report()
    actions = [line["action"] for line in health_lines(processes) if line["verdict"] == "critical"]
    assert actions == ["went back to step 0, learning rates times 0.5"]
    assert server.gets.total() > len(names), "nothing had been evicted"
    processes.summary().assert_read(showers.events)
    assert len(processes.audit()) == len(set(processes.audit()))
    assert bytes_under(processes.run_dir / "cache") == 0


def test_a_run_that_diverges_whatever_is_done_ends_with_one_line_and_is_not_started_again(
    processes: Processes, command: list[str]
) -> None:
    hopeless = settings("trainer.wgan.critic_lr=1e30")
    exit_code, output = processes.run("run", *command, *hopeless)
    assert exit_code == 2, processes.report()
    last = output.splitlines()[-1]
    assert "training diverged: step " in last
    assert "Going back 3 time(s) did not help" in last
    assert "health.jsonl" in last
    assert "Traceback" not in output + processes.log("trainer")
    assert processes.summary()["restarts"]["trainer"] == 0
    assert processes.summary()["adds_up"]
    assert not_finite(processes.checkpoint()["task"]) == []


def test_trainers_that_learn_together_go_back_together_and_every_event_counts_once(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    arguments = [*command, "--trainers", "2"]
    run = processes.start("run", *arguments, environment={"DIVERGE": "33"})
    assert processes.finish(run) == 0, processes.report()
    assert processes.summary().events == undisturbed.summary.events
    assert processes.summary()["restarts"] == {"fetcher": 0, "decoder": 0, "trainer": 0}
    lines = lines_of_updates(processes)
    assert [line["step"] for line in lines] == [33, 33], "one of each trainer"
    assert len({json.dumps(line["batch"]) for line in lines}) == 2, "each names its own data"
    assert sum(json.loads(line)["events"] for line in processes.audits()) == undisturbed.summary["events_trained"]
