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
    from torch._inductor.runtime.runtime_utils import default_cache_dir  # type: ignore[attr-defined]

    problem, remedy = "", ""
    if device.type == "cuda":
        problem, remedy = _of_cuda()
    elif not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        problem, remedy = "a C++ compiler on the CPU (g++ or clang++), and there is none", "install one"
    # Compiled code is written to these directories and loaded from there, Triton's by default within the other one.
    for variable, folder in (("TORCHINDUCTOR_CACHE_DIR", default_cache_dir()), ("TRITON_CACHE_DIR", "")):
        folder = os.environ.get(variable) or folder
        if folder and not problem and (device.type == "cuda" or variable != "TRITON_CACHE_DIR"):
            problem, remedy = _of_cache(folder), f"set {variable} to a directory on a disk of this machine"
    if problem:
        raise BadInputError(f"{setting} = true needs {problem}: {remedy}, or set {setting} = false")


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


def _of_cache(folder: str) -> str:
    cache = "a cache for compiled code"
    try:
        make_for_owner(Path(folder))
        if reason := changed_by_others(Path(folder)):
            return f"{cache} that nobody else can change, and {reason}"
        with tempfile.TemporaryFile(dir=folder):
            pass
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            return f"{cache}, and {folder} is mounted noexec: nothing can be loaded from it"
    except OSError as error:
        return f"{cache}, and {folder} can't be written ({error.strerror})"
    return ""
