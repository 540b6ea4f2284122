"""Schedule of benchmarks/gpu: its budget is kept, and what is left out has a reason."""

from __future__ import annotations

import pytest

from benchmarks.gpu.channel import Finding
from benchmarks.gpu.schedule import run_stages
from benchmarks.gpu.stages import BUDGET_S, STAGES, START_S, Stage

SAID: list[str] = []


class Laboratory:
    """Clock that only measurements move."""

    def __init__(self, takes_s: dict[str, float] | None = None) -> None:
        self.now_s = 0.0
        self.takes_s = takes_s or {}
        self.limits_s: dict[str, float] = {}

    def measure(self, stage: Stage, limit_s: float) -> Finding:
        self.limits_s[stage.name] = limit_s
        self.now_s += self.takes_s.get(stage.name, 1.0)
        return Finding(stage.name)

    def run(self, stages: list[Stage], end_s: float, *, is_cuda: bool = True) -> list[Finding]:
        measure, clock_s = self.measure, lambda: self.now_s
        return list(run_stages(stages, is_cuda=is_cuda, end_s=end_s, measure=measure, say=SAID.append, clock_s=clock_s))


def test_the_limits_of_all_stages_and_the_start_fit_into_eight_minutes() -> None:
    assert START_S + sum(stage.limit_s for stage in STAGES) <= BUDGET_S <= 8 * 60


def test_names_of_stages_are_unique() -> None:
    assert len({stage.name for stage in STAGES}) == len(STAGES)


def test_a_stage_may_take_what_those_before_it_left_and_not_what_those_behind_it_need() -> None:
    laboratory = Laboratory({"a": 4.0, "b": 30.0})
    found = laboratory.run([Stage("a", "A", 20), Stage("b", "B", 30), Stage("c", "C", 50)], end_s=110.0)
    assert [one.state for one in found] == ["done"] * 3
    assert laboratory.limits_s == {"a": 30.0, "b": 56.0, "c": 76.0}


def test_a_stage_without_enough_time_is_left_out_with_the_numbers() -> None:
    laboratory = Laboratory({"a": 95.0})
    found = laboratory.run([Stage("a", "A", 50), Stage("b", "B", 50)], end_s=100.0)
    assert [one.state for one in found] == ["done", "skipped"]
    assert found[1].reason == "no time left: 5 s of the 50 s that it may take"


def test_a_stage_for_a_gpu_is_left_out_on_the_cpu_and_its_time_goes_to_the_others() -> None:
    laboratory = Laboratory()
    stages = [Stage("a", "A", 20), Stage("b", "B", 30, only_cuda="a CPU has no such thing")]
    found = laboratory.run(stages, end_s=50.0, is_cuda=False)
    assert [(one.state, one.reason) for one in found] == [("done", ""), ("skipped", "a CPU has no such thing")]
    assert laboratory.limits_s == {"a": 50.0}


def test_missing_packages_are_named_with_the_command_that_installs_them() -> None:
    found = Laboratory().run([Stage("a", "A", 20, ("sys", "no_such_package", "nor_this"))], end_s=50.0)
    assert found[0].reason == "not installed: no_such_package, nor_this (pip install no_such_package nor_this)"


def test_a_missing_module_is_installed_by_the_name_that_the_package_index_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.stages.find_spec", lambda name: None)
    reason = Stage("a", "A", 20, ("pyarrow", "zmq")).reason_to_skip(is_cuda=True)
    assert reason == "not installed: pyarrow, zmq (pip install pyarrow pyzmq)"


def test_an_interrupted_stage_is_the_last_one() -> None:
    def measure(stage: Stage, limit_s: float) -> Finding:
        return Finding(stage.name, "interrupted")

    found = list(
        run_stages([Stage("a", "A", 1), Stage("b", "B", 1)], is_cuda=True, end_s=1e12, measure=measure, say=SAID.append)
    )
    assert [one.name for one in found] == ["a"]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_each_stage_is_a_module_with_a_docstring_and_a_table(stage: Stage) -> None:
    import importlib

    from benchmarks.gpu.columns import COLUMNS

    module = importlib.import_module(stage.module)
    assert module.__doc__
    assert callable(module.run)
    assert COLUMNS[stage.name]
