"""Recorded computations, with a runtime that computes them on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from fake_graphs import FakeRuntime
from line_task import points
from torch import Tensor

from common.errors import BadInputError
from workloads.base.batch import Microbatch
from workloads.base.flops import counted_flops
from workloads.base.graphs import CudaRuntime, Graphs, Recorded, make_graphs


@dataclass(frozen=True)
class Input:
    values: Tensor
    pair: tuple[Tensor, Tensor | None]
    source: Microbatch


class Output(NamedTuple):
    total: Tensor
    parts: list[Tensor]


WEIGHT = torch.ones(())


def sums(given: Input, factor: float) -> Output:
    values = given.values * factor * WEIGHT
    return Output(values.sum() + given.pair[0].sum(), [values.clone(), given.pair[0] * 2])


def other(given: Input, factor: float) -> Output:
    return Output(given.values.sum() - factor, [])


def make_input(size: int, seed: int = 0) -> Input:
    random = torch.Generator().manual_seed(seed)
    integers = torch.randint(9, (size,), generator=random)
    return Input(torch.rand(size, generator=random), (integers, None), points(3))


def equal(one: Output, two: Output) -> bool:
    return all(torch.equal(*pair) for pair in zip([one.total, *one.parts], [two.total, *two.parts], strict=True))


def test_a_replay_has_the_results_of_the_computation_for_new_values_of_the_same_sizes() -> None:
    runtime = FakeRuntime()
    graphs = Graphs(runtime)
    for seed in range(4):
        for size in (3, 5):
            given = make_input(size, seed)
            assert equal(graphs(sums, given, 2.0), sums(given, 2.0))
    assert (runtime.recorded, runtime.replayed) == (2, 8)


def test_each_function_number_and_type_has_its_own_recording() -> None:
    runtime = FakeRuntime()
    graphs = Graphs(runtime)
    given = make_input(3)
    for function, factor in ((sums, 1.0), (sums, 2.0), (other, 2.0), (sums, 1.0)):
        assert equal(graphs(function, given, factor), function(given, factor))
    wide = Input(given.values.double(), given.pair, given.source)
    assert graphs(sums, wide, 1.0).total.dtype == torch.float64
    assert runtime.recorded == 4


def test_the_recordings_used_last_are_kept() -> None:
    runtime = FakeRuntime()
    graphs = Graphs(runtime, most=2)
    for size in (3, 4, 3, 5, 3):  # 4 goes when 5 comes
        graphs(sums, make_input(size), 1.0)
    assert runtime.recorded == 3
    graphs(sums, make_input(4), 1.0)
    assert runtime.recorded == 4
    graphs.clear()
    graphs(sums, make_input(4), 1.0)
    assert runtime.recorded == 5


def test_a_step_whose_operations_are_counted_is_computed_and_not_recorded() -> None:
    runtime = FakeRuntime()
    graphs = Graphs(runtime)
    given = make_input(3)
    with counted_flops():
        assert equal(graphs(sums, given, 2.0), sums(given, 2.0))
    assert runtime.recorded == runtime.replayed == 0


def test_a_recording_that_fails_is_not_kept() -> None:
    runtime = FakeRuntime()
    graphs, given = Graphs(runtime), make_input(3)
    runtime.broken = RuntimeError("scripted")
    with pytest.raises(RuntimeError, match="scripted"):
        graphs(sums, given, 1.0)
    runtime.broken = None
    assert equal(graphs(sums, given, 1.0), sums(given, 1.0))


def test_a_recording_with_other_results_than_the_computation_is_refused() -> None:
    class Wrong(FakeRuntime):
        def record(self, compute: Callable[[], Output]) -> Recorded[Output]:  # type: ignore[override]
            recorded = super().record(compute)
            return recorded._replace(replay=lambda: recorded.result.total.fill_(1.01 * float(recorded.expected.total)))

    graphs = Graphs(Wrong())
    with pytest.raises(RuntimeError, match="a recording of sums has other results"):
        graphs(sums, make_input(3), 1.0)


def test_a_recording_of_a_batch_that_is_not_finite_is_not_refused() -> None:
    given = make_input(3)
    given.values[0] = torch.nan
    assert Graphs(FakeRuntime())(sums, given, 1.0).total.isnan()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_on_a_gpu_a_replay_has_the_results_of_the_computation() -> None:
    graphs = Graphs(CudaRuntime())
    weight = WEIGHT.cuda()

    def compute(values: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return (values * weight * factor).sum(), values.sort().values

    for seed in range(4):
        weight.fill_(seed + 1)
        for size in (100, 3000):
            values = torch.rand(size, generator=torch.Generator().manual_seed(seed)).cuda()
            for found, expected in zip(graphs(compute, values, 2.0), compute(values, 2.0), strict=True):
                torch.testing.assert_close(found, expected)


def test_what_is_asked_for_and_not_possible_is_an_error_and_what_may_be_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    assert make_graphs(False, "trainer.x", "on a CPU") is None
    assert not caplog.records
    assert make_graphs("auto", "trainer.x", "on a CPU") is None
    assert [record.message for record in caplog.records] == ["trainer.x.cuda_graphs = auto: off on a CPU"]
    with pytest.raises(BadInputError, match=r"x\.cuda_graphs = true is not possible on a CPU: set it"):
        make_graphs(True, "trainer.x", "on a CPU")
