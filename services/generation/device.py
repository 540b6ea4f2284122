"""The device that a command is told to compute on."""

from __future__ import annotations

import torch

from common.errors import BadInputError


def device_named(name: str) -> torch.device:
    """``auto``: CUDA if there is any, else the CPU. Raises BadInputError."""
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise BadInputError("--device cuda: there is no CUDA device here; use --device cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and has_cuda) else "cpu")
