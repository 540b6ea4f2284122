"""The training step that all models share, on the smallest one: a line through points."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from line_task import CPU, LineConfig, LineTask, batch_of, make_line, points, weights
from thread_ranks import ThreadRanks, together
from torch import Tensor
from toy_tasks import same, saved

from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.training import learning_rate_factor
from workloads.muons.models.config import LikelihoodConfig, WganConfig


def test_the_learning_rate_follows_a_cosine_to_five_percent_or_stays() -> None:
    cosine = WganConfig(schedule_steps=100)

    assert learning_rate_factor(0, cosine) == 1
    assert learning_rate_factor(50, cosine) == pytest.approx(0.525)
    assert learning_rate_factor(100, cosine) == learning_rate_factor(900, cosine) == pytest.approx(0.05)
    assert learning_rate_factor(900, WganConfig()) == 1


def test_one_cycle_rises_over_a_twentieth_of_the_steps_and_falls_to_next_to_nothing() -> None:
    config = LikelihoodConfig(schedule_steps=1000)
    factors = [learning_rate_factor(step, config) for step in range(1001)]

    assert factors[0] == pytest.approx(0.04)
    assert factors[50] == pytest.approx(1)
    assert factors == [*sorted(factors[:51]), *sorted(factors[51:], reverse=True)]
    assert factors[1000] == learning_rate_factor(5000, config) == pytest.approx(0.001)
    assert learning_rate_factor(3000, LikelihoodConfig()) == 0.25, "and no warning"
    assert LikelihoodConfig().warnings() == WganConfig().warnings() == []


SGD = {"optimiser": "sgd"}
"""Adam's first step only knows the sign of a gradient, and forgives a wrong scale."""


# ---- Parts.


def test_a_model_that_knows_its_memory_gets_the_parts_that_one_microbatch_of_all_events_makes() -> None:
    first, second, other = points(3, 1), points(2, 0, 4, number=2), points(1, 5, shard=1)
    batch = Batch((first, points(number=1), second, other))
    task = LineTask(LineConfig(chunk_particles=6), particle_bytes=1 << 10)

    parts = task.parts(batch, task.noise)

    assert [part.num_particles for part in parts] == [6, 5, 5]
    assert [part.offsets_E1.tolist() for part in parts] == [[0, 3, 4, 6, 6], [0, 4, 5], [0, 5]]
    assert all(part.offsets_E1.tolist() == part.host_offsets_E1.tolist() for part in parts)
    joined = torch.cat([part.particle_columns["x"] for part in parts])
    assert torch.equal(joined, torch.cat([one.particle_columns["x"] for one in (first, second, other)]))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((0, 0), [4, 6, 6, 2]),
        ((9, 0), [4, 6, 8]),
        ((10, 0), [10, 8]),
        ((18, 0), [18]),
        ((18, 60), [18]),  # the squares are 10, 26, 20 and 4
        ((18, 55), [10, 8]),
        ((18, 1), [4, 6, 6, 2]),
    ],
)
def test_of_another_model_neighbouring_microbatches_are_joined_within_the_limits_of_one(
    limits: tuple[int, int], expected: list[int]
) -> None:
    context = StepContext(CPU, 1, max_particles=limits[0], max_squared_particles=limits[1])
    task = make_line(context, chunk_particles=100)
    microbatches = points(3, 1), points(1, 5, number=1), points(2, 4, shard=1), points(number=1), points(2, shard=1)

    parts = task.parts(Batch(microbatches), task.noise)

    assert [part.num_particles for part in parts] == expected
    joined = torch.cat([part.particle_columns["x"] for part in parts])
    assert torch.equal(joined, torch.cat([one.particle_columns["x"] for one in microbatches]))


@pytest.mark.parametrize("particle_bytes", [1 << 10, 0])
def test_noise_of_a_trainers_share_is_the_same_however_its_events_come(particle_bytes: int) -> None:
    """As one microbatch, or as several with neighbours that are joined."""

    def drawn(*microbatches: Microbatch) -> Tensor:
        context = StepContext(CPU, 1, max_particles=100)
        task = LineTask(LineConfig(), context, particle_bytes=particle_bytes)
        task.noise.begin(3)
        (part,) = task.parts(Batch(microbatches), task.noise)
        return torch.randn(part.num_particles, generator=task.noise.of(part))

    whole = drawn(points(3, 1, 2, 4, number=2))
    assert torch.equal(drawn(points(3, 1, number=2), points(2, 4, number=5)), whole)
    assert not torch.equal(drawn(points(3, 1, 2, 4, number=1)), whole)


def test_without_noise_the_microbatches_make_the_same_step_however_they_are_dealt_to_trainers() -> None:
    """Sums over the ranks are those of one rank, up to their order."""
    microbatches = [points(*counts, seed=number, number=number) for number, counts in enumerate([(3, 4), (2,), (0, 5)])]
    whole = make_line(**SGD)
    expected = whole.step(Batch(microbatches))
    one_at_a_time = threading.Lock()
    for shares in ((microbatches[:1], microbatches[1:]), (microbatches[::2], microbatches[1::2]), (microbatches, [])):

        def train(ranks: ThreadRanks, shares: Sequence[Sequence[Microbatch]] = shares) -> tuple[dict[str, Any], Any]:
            with one_at_a_time:  # initial weights come from the process's generator
                task = make_line(StepContext(CPU, 1, sum_over_ranks=ranks.sum_), **SGD)
            return task.step(Batch(shares[ranks.rank]).among(5, 14)), weights(task)

        for metrics, found in together(2, train):
            for name, value in expected.items():
                torch.testing.assert_close(metrics[name], value, msg=name)
            torch.testing.assert_close(found, weights(whole))


@pytest.mark.parametrize(("parallel", "threads"), [(True, True), (False, False)])
def test_parts_are_computed_at_once_only_where_a_model_allows_it(parallel: bool, threads: bool) -> None:
    task = LineTask(LineConfig(chunk_particles=1), StepContext(CPU, 1, threads=2), parallel=parallel)
    computed_by = set()
    task.before_part = lambda part: computed_by.add(threading.current_thread())
    task.step(batch_of(1, 1, 1, 1))
    assert (threading.current_thread() not in computed_by) == threads


def test_out_of_memory_the_parts_are_halved_and_the_step_is_the_same(caplog: pytest.LogCaptureFixture) -> None:
    whole, short = make_line(**SGD), make_line(**SGD)
    batch = batch_of(*[2] * 10)

    def limited(part: Microbatch) -> None:
        if part.num_particles > 15:
            raise torch.OutOfMemoryError("scripted")

    short.before_part = limited
    expected, found = whole.step(batch), short.step(batch)

    assert short.seen == [[20], [10, 10]]
    assert "out of memory with 20 particles: the batch is split in two" in caplog.text
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


def test_memory_that_is_short_for_halves_ends_the_step() -> None:
    task = make_line(**SGD)

    def none_left(part: Microbatch) -> None:
        raise torch.OutOfMemoryError("scripted")

    task.before_part = none_left
    with pytest.raises(torch.OutOfMemoryError, match="scripted"):
        task.step(batch_of(2, 2))
    assert task.seen == [[4], [2, 2]]


# ---- Updates that are left out or bounded.


@pytest.mark.parametrize("value", [math.nan, 1e25])  # the square of the second one is infinite in float32
def test_an_update_that_is_not_finite_changes_neither_weights_nor_the_optimisers_state(value: float) -> None:
    task = make_line()
    task.step(batch_of(3, 4))
    before, state = weights(task), str(saved(task)["optimisers"])
    bad = points(3, 4)
    bad.particle_columns["y"][0] = value

    assert task.step(Batch((bad,)))["skipped_updates"] == 2

    assert same(before, weights(task))
    assert str(saved(task)["optimisers"]) == state


def test_clipping_bounds_the_gradient_that_is_applied_and_reports_the_one_before() -> None:
    task = make_line(**SGD, gradient_clip=0.01)
    before = task.slope.weight.detach().clone()

    norm = task.step(batch_of(3, 4))["slope_grad_norm"]

    assert norm > 0.02
    moved = (task.slope.weight.detach() - before).norm()
    assert float(moved) == pytest.approx(0.1 * 0.01, rel=1e-3)


# ---- Learning rates.


def test_learning_rates_follow_the_schedule_and_can_be_scaled_from_now_on() -> None:
    task = make_line(schedule="cosine", schedule_steps=4, warmup_steps=2)
    rates = []
    for step in range(6):
        if step == 5:
            task.scale_learning_rates(0.5)
        task.step(batch_of(2))
        rates.append(task.learning_rates())
    assert [rate["slope"] for rate in rates] == pytest.approx([0.1 / 3, 0.2 / 3, 0.1, 0.0525, 0.005, 0.0025])
    assert [rate["offset"] for rate in rates] == pytest.approx([0.1 * rate["slope"] for rate in rates])


# ---- Checkpoints.


def test_weights_of_another_run_are_taken_over_and_nothing_else() -> None:
    former, new = make_line(), make_line(StepContext(CPU, seed=2))
    former.step(batch_of(3))
    former.scale_learning_rates(0.5)

    new.load_weights(saved(former))

    assert same(weights(former), weights(new))
    assert (new.steps, new.rate_scale) == (0, 1.0)
    assert saved(new)["optimisers"]["slope"]["state"] == {}


def test_a_changed_recipe_is_logged_and_the_weights_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    before = make_line()
    before.step(batch_of(3))
    after = make_line(schedule_steps=7, gradient_clip=1.0)

    after.load_state_dict(saved(before))

    assert [record.message for record in caplog.records] == [
        "trainer.line.schedule_steps was 0 in the checkpoint and is 7 now; the weights are kept"
    ]
    assert same(weights(before), weights(after))
    assert after.steps == 1
    after.step(batch_of(3))
