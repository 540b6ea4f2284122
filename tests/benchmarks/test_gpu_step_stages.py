"""Stages of benchmarks/gpu that make steps: their cells, checks and kernels, with fakes of what fails."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from gpu_page import TINY, Page
from torch.autograd import DeviceType

from benchmarks.gpu import cells, checks_stage, compiled_stage, kernels_stage
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.variants import SHIPPED, VARIANTS, Steps, Variant
from common.errors import BadInputError
from workloads.base.batch import Batch


@pytest.fixture
def page() -> Page:
    return Page()


# ---- Step.


def test_cells_begin_with_the_first_size_in_the_default_precision() -> None:
    found = [str(cell) for cell in cells.cells([SHIPPED, Variant("plain", is_plain=True)], Setting("cuda"))]
    assert found[:5] == [
        "shipped, tf32, 128,000 events",
        "plain, tf32, 128,000 events",
        "shipped, float32, 128,000 events",
        "plain, float32, 128,000 events",
        "shipped, bf16, 128,000 events",
    ]
    assert len(found) == 15


@pytest.mark.slow
def test_compiled_code_has_the_products_of_the_shipped_step_and_no_count_of_bytes(page: Page) -> None:
    cells.measure_cells([SHIPPED, Variant("compiled", is_apart=True)], TINY, page.channel)
    rows = {(row["variant"], row["precision"]): row for row in page.rows}
    shipped, compiled = rows["shipped", "float32"], rows["compiled", "float32"]
    assert compiled["flops"] == shipped["flops"]
    assert "bytes" not in compiled
    assert float(shipped["bytes"] or 0) > 0
    assert float(compiled["seconds"] or 0) > 0


@pytest.mark.slow
def test_a_step_that_does_not_fit_on_the_card_is_a_row_of_the_table(
    monkeypatch: pytest.MonkeyPatch, page: Page
) -> None:
    def fails(*arguments: object) -> Callable[[], object]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Variant, "make", fails)
    cells.measure_cells([SHIPPED], TINY, page.channel)
    assert [row["note"] for row in page.rows] == ["out of memory", "out of memory"]
    assert [row["precision"] for row in page.rows] == ["float32", "bf16"]


@pytest.mark.slow
def test_a_variant_that_fails_is_a_failure_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, page: Page
) -> None:
    make = Variant.make

    def fails(self: Variant, *arguments: Any) -> Steps:
        if self.name == "broken":
            raise RuntimeError("no kernel\nimage is available")
        return make(self, *arguments)

    monkeypatch.setattr(Variant, "make", fails)
    cells.measure_cells([Variant("broken"), SHIPPED], TINY, page.channel)
    assert page.failures == ["broken, float32, 16 events: image is available"]
    assert page.left_out == ["broken, bf16, 16 events: this variant failed before"]
    assert [row["precision"] for row in page.rows] == ["float32", "bf16"]
    assert all(float(row["seconds"] or 0) > 0 for row in page.rows)


def test_a_batch_as_it_is_fed_has_the_same_events_in_several_microbatches() -> None:
    from benchmarks.gpu.data import as_fed, batch_of, simulated

    whole = batch_of(simulated(200), 200, torch.device("cpu"))
    fed = as_fed(whole, 64)
    assert len(fed.microbatches) > 3
    assert (fed.num_events, fed.num_particles) == (whole.num_events, whole.num_particles)
    joined = torch.cat([part.particle_columns["muons"] for part in fed.microbatches])
    assert torch.equal(joined, whole.microbatches[0].particle_columns["muons"])
    addresses = {part.particle_columns["muons"].untyped_storage().data_ptr() for part in fed.microbatches}
    assert len(addresses) == len(fed.microbatches)


def test_each_variant_has_a_name_of_its_own_and_makes_a_step() -> None:
    assert len({one.name for one in VARIANTS}) == len(VARIANTS)
    assert {one.precisions(is_cuda=True)[0] for one in VARIANTS} == {"tf32"}
    assert "bf16" not in Variant("plain", is_plain=True).precisions(is_cuda=True)


# ---- Checks.


@pytest.mark.slow
def test_a_difference_from_the_plain_step_is_a_failed_check_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, page: Page
) -> None:
    def differs(*arguments: object, **named: object) -> None:
        raise SystemExit("c_loss: 1.0 shipped, 2.0 plain")

    monkeypatch.setattr(checks_stage, "compare", differs)
    monkeypatch.setattr(checks_stage, "be_deterministic", lambda: None)
    checks_stage.run(TINY, page.channel)
    assert page.failures == ["losses of the plain step, to 1e-5: c_loss: 1.0 shipped, 2.0 plain"]
    assert page.rows[0]["outcome"] == "failed"
    assert [str(row["outcome"])[:13] for row in page.rows][1:] == ["the same bits"] * 2


@pytest.mark.slow
def test_weights_that_differ_in_deterministic_mode_are_a_failed_check(
    monkeypatch: pytest.MonkeyPatch, page: Page
) -> None:
    seeds = iter(range(100))
    monkeypatch.setattr(checks_stage, "be_deterministic", lambda: None)
    make = checks_stage.StepContext
    monkeypatch.setattr(checks_stage, "StepContext", lambda device, seed, **named: make(device, next(seeds), **named))
    checks_stage.run(TINY, page.channel)
    assert [one.partition(":")[0] for one in page.failures] == [
        "deterministic mode, float32",
        "deterministic mode, bf16",
    ]


@pytest.mark.parametrize("waits", [False, True])
def test_a_step_that_waits_for_the_device_is_found_by_cudas_own_mode_which_is_off_afterwards(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    modes: list[str] = ["default"]
    steps: list[str] = []

    def step(batch: object) -> None:
        steps.append(modes[-1])
        if waits and modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr("torch.cuda.set_sync_debug_mode", modes.append)
    batches: list[Any] = ["one", "other"]

    def check() -> str:
        return checks_stage._no_sync(lambda: cast(Any, SimpleNamespace(step=step)), batches)

    if waits:
        with pytest.raises(RuntimeError, match="synchronizing"):
            check()
    else:
        assert check() == "none in 6 steps"
        assert steps == ["default"] * 2 + ["error"] * 6
    assert modes == ["default", "error", "default"]


# ---- Kernels.


def test_kernels_are_summed_by_name_and_ranges_of_the_user_are_none() -> None:
    def event(name: str, device: DeviceType, us: float, is_range: bool = False) -> SimpleNamespace:
        span = SimpleNamespace(elapsed_us=lambda: us)
        return SimpleNamespace(name=name, device_type=device, time_range=span, is_user_annotation=is_range)

    events = [
        event("gemm", DeviceType.CUDA, 10.0),
        event("gemm", DeviceType.CUDA, 30.0),
        event("add", DeviceType.CUDA, 1.0),
        event("Optimizer.step", DeviceType.CUDA, 41.0, is_range=True),
        event("aten::mm", DeviceType.CPU, 99.0),
    ]
    assert kernels_stage.summed(events) == {"gemm": (2, pytest.approx(40e-6)), "add": (1, pytest.approx(1e-6))}


def test_a_long_name_of_a_kernel_fits_into_the_table() -> None:
    name = "void at::native::elementwise_kernel<128, 4, a|b" + 200 * "x" + "::end>"
    assert kernels_stage.short(name).startswith("at::native::elementwise_kernel<128, 4, a/b")
    assert kernels_stage.short(name).endswith("::end>")
    assert len(kernels_stage.short(name)) <= 90


# ---- No compiler.


def test_without_a_compiler_the_compiled_step_is_left_out_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, page: Page
) -> None:
    def refuses(device: torch.device, setting: str) -> None:
        raise BadInputError(f"{setting} = true needs a C compiler on CUDA: install one")

    monkeypatch.setattr("workloads.muons.models.wgan.networks.require_compiler", refuses)
    compiled_stage.run(TINY, page.channel)
    reason = "trainer.wgan.compile = true needs a C compiler on CUDA: install one"
    expected = [f"compiled: {reason}", f"compiled: losses of the plain step, to 1e-5: {reason}"]
    assert [one for one in page.left_out if one.startswith("compiled")] == expected
    assert (page.rows, page.failures) == ([], [])


@pytest.mark.parametrize("differs", [False, True])
def test_compiled_code_with_other_losses_than_the_plain_step_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, page: Page, differs: bool
) -> None:
    def compare(batch: Batch, device: torch.device, *, compiled: bool) -> None:
        assert compiled
        if differs:
            raise SystemExit("g_loss: 1.0 shipped, 2.0 plain")

    monkeypatch.setattr(compiled_stage, "compare", compare)
    monkeypatch.setattr(compiled_stage, "VARIANTS", ())
    compiled_stage.run(TINY, page.channel)
    what = "losses of the plain step, to 1e-5"
    assert page.failures == ([f"compiled: {what}: g_loss: 1.0 shipped, 2.0 plain"] if differs else [])
    assert page.rows[0]["note"] == f"{what}: {'they differ' if differs else 'the same'}"


@pytest.mark.slow
def test_the_most_expensive_kernels_of_each_variant_are_listed_and_one_that_can_not_be_made_is_left_out(
    monkeypatch: pytest.MonkeyPatch, page: Page
) -> None:
    def make(self: Variant, *arguments: object) -> Steps:
        if self.is_apart:
            raise BadInputError("no compiler")
        return Steps(lambda: None, 2)

    kernels = {f"kernel {number}": (2.0, float(number)) for number in range(20)}
    monkeypatch.setattr(Variant, "make", make)
    monkeypatch.setattr(kernels_stage, "kernels_of", lambda steps: kernels)
    kernels_stage.run(TINY, page.channel)
    of_plain = [row for row in page.rows if row["variant"] == "plain"]
    assert of_plain[0] | {"calls": 40.0, "seconds": 190.0, "kernel": "all"} == of_plain[0]
    assert [row["kernel"] for row in of_plain[1:]] == [f"kernel {number}" for number in range(19, 11, -1)]
    apart = [variant.name for variant in VARIANTS if variant.is_apart]
    assert page.left_out == [f"{name}, float32, 16 events: no compiler" for name in apart]
