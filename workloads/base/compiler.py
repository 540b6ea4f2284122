"""Check that `torch.compile` can work here."""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch

from common.errors import BadInputError
from common.paths import changed_by_others, make_for_owner


def require_compiler(device: torch.device, setting: str) -> None:
    """Raise BadInputError, naming ``setting``, if code for the device can't be compiled and loaded on this machine."""
    for problem, remedy in (_of_cuda() if device.type == "cuda" else _of_cpu(), _of_caches(device)):
        if problem:
            raise BadInputError(f"{setting} = true needs {problem}: {remedy}, or set {setting} = false")


def _of_cpu() -> tuple[str, str]:
    if any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        return "", ""
    return "a C++ compiler on the CPU (g++ or clang++), and there is none", "install one"


def _of_cuda() -> tuple[str, str]:
    """Triton compiles its kernels itself, but their launchers with a C compiler, against Python's headers."""
    if find_spec("triton") is None:
        return "triton on CUDA, which this Python doesn't have", "install torch with CUDA, which brings it along"
    chosen = os.environ.get("CC", "")
    if chosen and not shutil.which(chosen):
        return f"a C compiler on CUDA, and CC = {chosen} is none", "set CC to one"
    if not chosen and not any(shutil.which(name) for name in ("gcc", "clang")):
        return "a C compiler on CUDA (gcc or clang), and there is none", "install one, or set CC to one"
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        return f"Python's headers on CUDA, and {headers}/Python.h is missing", "install them (python3-dev)"
    return "", ""


def _of_caches(device: torch.device) -> tuple[str, str]:
    """Compiled code is written to these directories and loaded from there."""
    from torch._inductor.runtime.runtime_utils import default_cache_dir  # type: ignore[attr-defined]

    environment = {"TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir()}
    if device.type == "cuda" and os.environ.get("TRITON_CACHE_DIR"):  # by default within the other one
        environment["TRITON_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"]
    problems = (_of_cache(variable, folder) for variable, folder in environment.items())
    return next((one for one in problems if one[0]), ("", ""))


def _of_cache(variable: str, folder: str) -> tuple[str, str]:
    remedy = f"set {variable} to a directory on a disk of this machine"
    try:
        make_for_owner(Path(folder))
        if reason := changed_by_others(Path(folder)):
            return f"a cache for compiled code that nobody else can change, and {reason}", remedy
        with tempfile.TemporaryFile(dir=folder):
            pass
        may_execute = not os.statvfs(folder).f_flag & os.ST_NOEXEC
    except OSError as error:
        return f"a cache for compiled code, and {folder} can't be written ({error.strerror})", remedy
    if not may_execute:
        return f"a cache for compiled code, and {folder} is mounted noexec: nothing can be loaded from it", remedy
    return "", ""
