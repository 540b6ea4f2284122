"""What `torch.compile` needs on each device, checked before training."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common.errors import BadInputError
from workloads.base.compiler import require_compiler

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SETTING = "trainer.wgan.compile"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with all that is needed; a test takes something away."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.delenv("CC", raising=False)
    programs(monkeypatch, "gcc", "g++")
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("workloads.base.compiler.sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setattr("workloads.base.compiler.find_spec", lambda name: name)


def programs(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr("workloads.base.compiler.shutil.which", lambda name: name if name in names else None)


def refusal(device: torch.device) -> str:
    with pytest.raises(BadInputError) as refused:
        require_compiler(device, SETTING)
    text = str(refused.value)
    assert text.startswith(f"{SETTING} = true needs ")
    assert text.endswith(f", or set {SETTING} = false")
    assert "\n" not in text
    return text


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_a_machine_with_all_that_is_needed_may_compile(device: torch.device) -> None:
    require_compiler(device, SETTING)


def test_cuda_needs_a_c_compiler_and_the_cpu_one_for_cplusplus(monkeypatch: pytest.MonkeyPatch) -> None:
    programs(monkeypatch)
    assert "a C++ compiler on the CPU" in refusal(CPU)
    assert "a C compiler on CUDA (gcc or clang), and there is none" in refusal(CUDA)
    programs(monkeypatch, "clang")
    require_compiler(CUDA, SETTING)


def test_on_cuda_the_compiler_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "missing-cc")
    assert "CC = missing-cc is none" in refusal(CUDA)
    programs(monkeypatch, "missing-cc")
    require_compiler(CUDA, SETTING)


def test_cuda_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.base.compiler.find_spec", lambda name: None)
    assert "triton" in refusal(CUDA)
    require_compiler(CPU, SETTING)


def test_cuda_needs_the_headers_of_python(tmp_path: Path) -> None:
    (tmp_path / "Python.h").unlink()
    assert f"{tmp_path}/Python.h is missing" in refusal(CUDA)


@pytest.mark.parametrize(
    ("variable", "device"),
    [("TORCHINDUCTOR_CACHE_DIR", CPU), ("TORCHINDUCTOR_CACHE_DIR", CUDA), ("TRITON_CACHE_DIR", CUDA)],
)
def test_a_cache_from_which_nothing_can_be_loaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, device: torch.device
) -> None:
    folder = str(tmp_path / "noexec")
    monkeypatch.setenv(variable, folder)
    monkeypatch.setattr(
        "workloads.base.compiler.os.statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC if path == folder else 0)
    )
    text = refusal(device)
    assert f"{folder} is mounted noexec" in text
    assert f"set {variable} to" in text


def test_a_cache_that_can_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert "can't be written" in refusal(CUDA)


@pytest.mark.parametrize(
    ("variable", "device"),
    [("TORCHINDUCTOR_CACHE_DIR", CPU), ("TORCHINDUCTOR_CACHE_DIR", CUDA), ("TRITON_CACHE_DIR", CUDA)],
)
def test_a_cache_that_others_can_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, device: torch.device
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv(variable, str(tmp_path / "open" / "below"))
    text = refusal(device)
    assert f"that nobody else can change, and {tmp_path}/open (mode 0777" in text
    assert f"set {variable} to" in text
