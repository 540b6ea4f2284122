"""Check that `torch.compile` can work here."""

from __future__ import annotations

import shutil

import torch

from common.errors import BadInputError


def require_compiler(device: torch.device, setting: str) -> None:
    """Raise BadInputError, naming ``setting``, if code for the device can't be compiled on this machine."""
    if device.type == "cpu" and not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        raise BadInputError(
            f"{setting} = true needs a C++ compiler on the CPU (g++ or clang++), and there is none: "
            f"install one, or set {setting} = false"
        )
