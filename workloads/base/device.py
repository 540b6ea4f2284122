"""Torch devices by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from common.errors import BadInputError


def device_named(name: str, setting: str | None = None) -> torch.device:
    """Device named ``cpu``, ``cuda`` or ``cuda:N``; ``auto``: CUDA if there is any, else the CPU.

    Raises BadInputError that begins with ``setting``, by default `--device NAME`.
    """
    cpu = "cpu" if setting else "--device cpu"
    setting = setting or f"--device {name}"
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise BadInputError(f"{setting}: expected auto, cpu, cuda or cuda:N")
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if has_cuda else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise BadInputError(f"{setting}: use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and not has_cuda:
        raise BadInputError(f"{setting}: there is no CUDA device here; use {cpu}")
    if device.type == "cuda" and (device.index or 0) >= (num := torch.cuda.device_count()):
        raise BadInputError(f"{setting}: there are {num} CUDA devices here, cuda:0 to cuda:{num - 1}")
    return device


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Context in which torch uses ``number`` CPU threads, and afterwards as many as before; None: no change."""
    before = torch.get_num_threads()
    try:
        if number is not None:
            torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)
