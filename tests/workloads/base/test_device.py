"""Devices by name, computation on a CPU, and parts of a batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from native_layers import compiled, layers_in_cpp

from common import native
from common.errors import BadInputError
from services.trainer.service import trainer_device
from workloads.base import device as cpu_tuning
from workloads.base.device import (
    CPU_CHUNK_PARTICLES,
    MOST_ERROR,
    choose_matrix_products,
    device_named,
    error_of_a_layer,
    error_of_a_product,
    mkl_is_held_back,
    most_particles,
    particles_in_cache,
    second_level_cache_bytes,
    tune_cpu,
    tuned_cpu,
)
from workloads.base.native.layers import LAYERS


def test_parts_have_what_is_configured_or_suits_the_device_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {"nvidia-small": 8 << 30, "nvidia-large": 80_000_000_000}
    of_device = {torch.device("cuda", number): bytes_ for number, bytes_ in enumerate(memory.values())}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=of_device[device])
    )
    small, large = of_device
    assert most_particles(1500, CPU, CPU_CHUNK_PARTICLES, 1 << 15) == 1500
    assert most_particles(0, CPU, CPU_CHUNK_PARTICLES, 1 << 15) == CPU_CHUNK_PARTICLES
    assert most_particles(0, CPU, 5000, 1 << 15) == 5000  # of a model that says so
    assert most_particles(3000, large, CPU_CHUNK_PARTICLES, 1 << 15) == 3000
    assert most_particles(0, small, CPU_CHUNK_PARTICLES, 1 << 15) == 1 << 17  # half of 8 GiB, 32 KiB each
    assert most_particles(0, large, CPU_CHUNK_PARTICLES, 1 << 15) == 1 << 20  # a power of two below 1,220,703
    assert most_particles(0, small, CPU_CHUNK_PARTICLES, 1 << 60) == 1
    assert most_particles(0, small, CPU_CHUNK_PARTICLES) == sys.maxsize  # a model that doesn't know its memory


def test_without_cuda_auto_is_the_cpu_and_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_named("auto") == torch.device("cpu")
    with pytest.raises(BadInputError, match=r"^--device cuda:1: there is no CUDA device here"):
        device_named("cuda:1")
    with pytest.raises(BadInputError, match=r"^trainer\.device = 'cuda': there is no CUDA device here"):
        trainer_device("cuda")


def test_a_gpu_of_too_high_a_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (device_named("auto"), device_named("cuda:1")) == (torch.device("cuda"), torch.device("cuda:1"))
    with pytest.raises(BadInputError, match=r"^trainer\.device = 'cuda:2': there are 2 CUDA devices here"):
        trainer_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "", "mps:0"])
def test_a_name_that_is_no_device_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(BadInputError, match=rf"^--device {name}: expected auto, cpu, cuda or cuda:N$"):
        device_named(name)


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
    assert not choose_matrix_products(tmp_path / "missing")
    (tmp_path / "arm").write_text("processor : 0\nFeatures : fp asimd\n")
    assert not choose_matrix_products(tmp_path / "arm")
    assert torch.get_float32_matmul_precision() == "highest"


def test_products_with_larger_errors_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(cpu_tuning, "error_of_a_product", lambda: 2e-3)  # of bfloat16
    assert not choose_matrix_products(cpuinfo(tmp_path, "AuthenticAMD", "avx512f"))
    assert torch.get_float32_matmul_precision() == "highest"
    assert "errors of 2e-03" in caplog.text


def test_an_error_of_bfloat16_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < error_of_a_product.__wrapped__() < MOST_ERROR
    exact = torch.Tensor.__matmul__

    def rounded(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if one.dtype != torch.float32:
            return exact(one, other)
        return exact(one.bfloat16().float(), other.bfloat16().float())

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert error_of_a_product.__wrapped__() > 100 * MOST_ERROR


def test_a_gpus_process_computes_no_layers_in_cpp() -> None:
    tune_cpu(torch.device("cuda"))
    assert LAYERS.used is None
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.process
def test_layers_in_cpp_are_used_if_they_are_right(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    made = compiled()
    monkeypatch.setattr(native, "built", lambda _: made)
    tune_cpu(CPU)
    assert LAYERS.used is made
    assert caplog.messages[-1] == "layers on the CPU: C++"
    assert error_of_a_layer.__wrapped__() < MOST_ERROR

    monkeypatch.setattr(cpu_tuning, "error_of_a_layer", lambda: 1e-3)
    tune_cpu(CPU)
    assert LAYERS.used is None
    assert caplog.messages[-1] == "layers on the CPU: torch, since those in C++ have errors of 1e-03"


@pytest.mark.process
def test_an_error_of_a_layer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with layers_in_cpp():
        monkeypatch.setattr(cpu_tuning.F, "leaky_relu", lambda values, leak: values)
        assert error_of_a_layer.__wrapped__() > 100 * MOST_ERROR


def test_contexts_that_overlap_leave_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_tuning, "tune_cpu", lambda _: torch.set_float32_matmul_precision("medium"))
    one, other = tuned_cpu(CPU), tuned_cpu(CPU)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "medium", "the other one is still inside"
    other.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("cache_kib", "particles"),
    [(1024, 4096), (1280, 4096), (2048, 8192), (512, 2048), (256, 1024), (64, 1024), (1 << 20, 16384), (0, 4096)],
)
def test_parts_are_as_large_as_the_cache_allows(cache_kib: int, particles: int) -> None:
    assert particles_in_cache(cache_kib << 10) == particles


def test_the_size_of_the_cache_is_read_from_the_system(tmp_path: Path) -> None:
    size = tmp_path / "size"
    assert second_level_cache_bytes(size) == 0
    size.write_text("2048K\n")
    assert second_level_cache_bytes(size) == 2 << 20
    size.write_text("")
    assert second_level_cache_bytes(size) == 0
