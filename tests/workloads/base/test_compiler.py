"""What `torch.compile` needs on each device, checked before training."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common.errors import BadInputError
from workloads.base.device import require_compiler

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
    monkeypatch.setattr("workloads.base.device.sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setattr("workloads.base.device.find_spec", lambda name: name)


def programs(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr("workloads.base.device.shutil.which", lambda name: name if name in names else None)


def refusal(device: torch.device) -> str:
    with pytest.raises(BadInputError) as refused:
        require_compiler(device, SETTING)
    text = str(refused.value)
    assert text.startswith(f"{SETTING} = true needs ")
    assert text.endswith(f", or set {SETTING} = false")
    assert "\n" not in text
    return text


def test_cuda_needs_triton_a_c_compiler_and_headers_and_the_cpu_a_compiler_for_cplusplus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_compiler(CPU, SETTING)
    require_compiler(CUDA, SETTING)
    programs(monkeypatch)
    assert "a C++ compiler on the CPU" in refusal(CPU)
    assert "a C compiler on CUDA (gcc or clang), and there is none" in refusal(CUDA)
    monkeypatch.setenv("CC", "missing-cc")
    assert "CC = missing-cc is none" in refusal(CUDA)
    programs(monkeypatch, "missing-cc", "clang++")
    require_compiler(CUDA, SETTING)
    (tmp_path / "Python.h").unlink()
    assert f"{tmp_path}/Python.h is missing" in refusal(CUDA)
    monkeypatch.setattr("workloads.base.device.find_spec", lambda name: None)
    assert "triton" in refusal(CUDA)
    require_compiler(CPU, SETTING)


@pytest.mark.parametrize(
    ("variable", "device"),
    [("TORCHINDUCTOR_CACHE_DIR", CPU), ("TORCHINDUCTOR_CACHE_DIR", CUDA), ("TRITON_CACHE_DIR", CUDA)],
)
def test_a_cache_that_can_not_be_written_or_loaded_from_or_that_others_can_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, device: torch.device
) -> None:
    def refused(folder: Path) -> str:
        monkeypatch.setenv(variable, str(folder))
        text = refusal(device)
        assert f"set {variable} to" in text
        return text

    noexec = str(tmp_path / "noexec")
    flags = {noexec: os.ST_NOEXEC}
    statvfs = "workloads.base.device.os.statvfs"
    monkeypatch.setattr(statvfs, lambda path: SimpleNamespace(f_flag=flags.get(path, 0)))
    assert f"{noexec} is mounted noexec" in refused(Path(noexec))
    (tmp_path / "file").touch()
    assert "can't be written" in refused(tmp_path / "file" / "cache")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert f"that nobody else can change, and {tmp_path}/open (mode 0777" in refused(tmp_path / "open" / "below")
