"""Choice of the library for matrix products: by the processor and by the error, never by a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from native_layers import compiled, layers_in_cpp

from common.native import build
from workloads.base import cpu_tuning
from workloads.base.cpu_tuning import (
    MOST_ERROR,
    choose_matrix_products,
    error_of_a_layer,
    error_of_a_product,
    mkl_is_held_back,
    tune_cpu,
    tuned_cpu,
)
from workloads.base.native import library

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def products_as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def cpuinfo(folder: Path, vendor: str, flags: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags} sse\n\nprocessor\t: 1\n")
    return path


@pytest.mark.parametrize(
    ("vendor", "flags", "held_back"),
    [
        ("AuthenticAMD", "avx2 avx512f", True),
        ("AuthenticAMD", "avx2", False),
        ("GenuineIntel", "avx2 avx512f", False),
        ("GenuineIntel", "avx2 avx512f amx_bf16", False),
    ],
)
def test_mkl_is_held_back_where_it_leaves_avx512_unused(
    tmp_path: Path, vendor: str, flags: str, held_back: bool
) -> None:
    assert mkl_is_held_back(cpuinfo(tmp_path, vendor, flags)) is (held_back and torch.backends.mkl.is_available())


def test_without_a_description_of_the_processor_nothing_changes(tmp_path: Path) -> None:
    assert not choose_matrix_products(CPU, tmp_path / "missing")
    (tmp_path / "arm").write_text("processor : 0\nFeatures : fp asimd\n")
    assert not choose_matrix_products(CPU, tmp_path / "arm")
    assert torch.get_float32_matmul_precision() == "highest"


def test_products_of_a_gpu_are_left_alone(tmp_path: Path) -> None:
    assert not choose_matrix_products(torch.device("cuda"), cpuinfo(tmp_path, "AuthenticAMD", "avx512f"))
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_choice_is_the_same_each_time_and_keeps_float32(tmp_path: Path) -> None:
    amd = cpuinfo(tmp_path, "AuthenticAMD", "avx512f")
    chosen = {choose_matrix_products(CPU, amd) for _ in range(3)}
    assert len(chosen) == 1
    assert error_of_a_product() <= MOST_ERROR
    assert torch.get_float32_matmul_precision() == ("medium" if chosen == {True} else "highest")


def test_products_with_larger_errors_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(cpu_tuning, "error_of_a_product", lambda: 2e-3)  # of bfloat16
    assert not choose_matrix_products(CPU, cpuinfo(tmp_path, "AuthenticAMD", "avx512f"))
    assert torch.get_float32_matmul_precision() == "highest"
    assert "errors of 2e-03" in caplog.text


def test_an_error_of_bfloat16_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < error_of_a_product() < MOST_ERROR
    exact = torch.Tensor.__matmul__

    def rounded(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if one.dtype != torch.float32:
            return exact(one, other)
        return exact(one.bfloat16().float(), other.bfloat16().float())

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert error_of_a_product() > 100 * MOST_ERROR


def test_a_gpus_process_computes_no_layers_in_cpp() -> None:
    tune_cpu(torch.device("cuda"))
    assert library.used() is None
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.process
def test_layers_in_cpp_are_used_if_they_are_right(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    made = compiled()
    monkeypatch.setattr(build, "built", lambda _: made)
    tune_cpu(CPU)
    assert library.used() is made
    assert caplog.messages[-1] == "layers on the CPU: C++"
    assert error_of_a_layer() < MOST_ERROR

    monkeypatch.setattr(cpu_tuning, "error_of_a_layer", lambda: 1e-3)
    tune_cpu(CPU)
    assert library.used() is None
    assert caplog.messages[-1] == "layers on the CPU: torch, since those in C++ have errors of 1e-03"


@pytest.mark.process
def test_an_error_of_a_layer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with layers_in_cpp():
        monkeypatch.setattr(cpu_tuning.F, "leaky_relu", lambda values, leak: values)
        assert error_of_a_layer() > 100 * MOST_ERROR


def test_contexts_that_overlap_leave_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_tuning, "tune_cpu", lambda _: torch.set_float32_matmul_precision("medium"))
    one, other = tuned_cpu(CPU), tuned_cpu(CPU)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "medium", "the other one is still inside"
    other.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_build_that_failed_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def fails(_: object) -> None:
        tries.append(1)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(build, "built", fails)
    for _ in range(3):
        assert not library.use()
    assert len(tries) == 1


@pytest.mark.parametrize("error", ["error_of_a_product", "error_of_a_layer"])
def test_an_error_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    monkeypatch.setattr(cpu_tuning, error, lambda: float("nan"))
    monkeypatch.setattr(library, "use", lambda: True)
    monkeypatch.setattr(library.LAYERS, "used", object())
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    if error == "error_of_a_product":
        assert not choose_matrix_products(CPU, cpuinfo(tmp_path, "AuthenticAMD", "avx512f"))
    else:
        tune_cpu(CPU)
        assert library.used() is None


@pytest.mark.process
def test_a_callers_autocast_or_type_of_numbers_does_not_matter() -> None:
    with layers_in_cpp(), torch.autocast("cpu"):
        assert cpu_tuning.error_of_a_layer() <= MOST_ERROR
    torch.set_default_dtype(torch.float64)
    try:
        with layers_in_cpp():
            assert cpu_tuning.error_of_a_layer() <= MOST_ERROR
    finally:
        torch.set_default_dtype(torch.float32)
