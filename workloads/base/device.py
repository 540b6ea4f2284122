"""Torch devices by name."""

from __future__ import annotations

import torch

from common.errors import BadInputError


def device_named(name: str, setting: str | None = None) -> torch.device:
    """Device named ``cpu``, ``cuda`` or ``cuda:N``; ``auto``: CUDA if there is any, else the CPU.

    Raises BadInputError that begins with ``setting``, by default `--device NAME`.
    """
    setting = setting or f"--device {name}"
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if has_cuda else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not has_cuda:
        raise BadInputError(f"{setting}: there is no CUDA device here; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= (num := torch.cuda.device_count()):
        raise BadInputError(f"{setting}: there are {num} CUDA devices here, cuda:0 to cuda:{num - 1}")
    return device
