"""Two runs of different workloads at once on one machine: each trains what it trains alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import Processes
from showers import Scene, Undisturbed

pytestmark = pytest.mark.slow


def test_two_runs_of_different_workloads_at_once_train_what_each_trains_alone(
    processes: Processes, command: list[str], undisturbed: Undisturbed, direction: Scene, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = Processes(folder / "run", folder)
    try:
        first = processes.start("run", *command, environment=processes.brake(5))
        second = other.start("run", *direction.command)
        other.wait_in(second, lambda: other.checkpoint_step() > 0, "a checkpoint")
        both_at_work = not first.ended()
        processes.release()
        assert processes.finish(first) == 0, processes.report()
        assert other.finish(second) == 0, other.report()
        other.assert_nothing_is_left()
    finally:
        other.end()
    assert both_at_work
    undisturbed.assert_same(processes)
    direction.undisturbed.assert_same(other)
