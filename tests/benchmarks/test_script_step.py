"""The step of the replaced script, against which ours is timed, does what its docstring says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from benchmarks import script_step
from benchmarks.bench_script_step import make_cases
from benchmarks.script_step import ScriptStep, Widths


def test_a_step_trains_all_networks_and_penalises_the_drawn_muons_every_second_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(script_step, "PENALTY_MUONS", 10)
    torch.manual_seed(0)
    script = ScriptStep(5, 2, Widths.all(16, (4, 3)))
    networks = script.context, script.muons, script.embedding, script.decision, script.count
    before = [parameter.detach().clone() for network in networks for parameter in network.parameters()]
    slopes: list[int] = []
    whole = script._penalty

    def penalty(*arguments: Tensor) -> Tensor:
        found = whole(*arguments)
        slopes.append(len(arguments[0]))
        return found

    monkeypatch.setattr(script, "_penalty", penalty)
    counts_E = torch.tensor([4, 1, 20])
    found = script.step(torch.randn(25, 2), torch.randn(3, 5), counts_E)
    assert all(math.isfinite(value) for value in found.values())
    assert set(found) == {"c_loss", "g_loss", "m_loss"}
    assert slopes == [25] * 3  # of five updates, the first, third and fifth
    after = [parameter for network in networks for parameter in network.parameters()]
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.slow
def test_every_case_of_the_benchmark_makes_a_step() -> None:
    for step in make_cases(64, 1).values():
        step()
