"""Choice of the libraries for layers and matrix products on a CPU.

Layers are computed in C++ where there is a compiler (workloads/base/native). For other products torch has two libraries
for float32: MKL, its default, and oneDNN, which it uses if `torch.set_float32_matmul_precision` allows less than
float32. MKL uses AVX-512 on Intel's processors only; oneDNN on any, and on those without units for bfloat16 tiles (AMX)
in full float32. The choice is by properties of the machine and by the error of a product, not by the time that one
takes: a resumed run would otherwise be free to choose anew, and its bits would differ.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F

from common.heap import keep_freed_memory
from workloads.base.native import dense, library

logger = logging.getLogger(__name__)

MOST_ERROR = 1e-6
"""Largest error of a product, relative to the sum of its terms' absolute values; float32 reaches 2e-7."""
_CPUINFO = Path("/proc/cpuinfo")


def tune_cpu(device: torch.device) -> None:
    """Let this process compute layers and products in the fastest way that keeps float32's accuracy, if on a CPU."""
    if device.type != "cpu":
        return
    keep_freed_memory()
    choose_matrix_products(device)
    if not library.use():
        return
    error = error_of_a_layer()
    if not error <= MOST_ERROR:  # also of NaN
        library.use_torch()
        logger.warning("layers on the CPU: torch, since those in C++ have errors of %.0e", error)
    else:
        logger.info("layers on the CPU: C++")


_LOCK = threading.Lock()
_inside = 0
"""Contexts of `tuned_cpu` that are open, in all threads."""
_before: tuple[str, bool] = ("highest", False)
"""Precision of products, and whether the layers in C++ were in use, before the first of them."""


@contextmanager
def tuned_cpu(device: torch.device) -> Iterator[None]:
    """Context with `tune_cpu`; after the last one, a caller's own computations are as before."""
    global _inside, _before
    with _LOCK:
        if _inside == 0:
            _before = torch.get_float32_matmul_precision(), library.used() is not None
        _inside += 1
    try:
        with _LOCK:
            tune_cpu(device)
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if _inside == 0:
                precision, was_used = _before
                torch.set_float32_matmul_precision(precision)
                if not was_used:
                    library.use_torch()


def choose_matrix_products(device: torch.device, cpuinfo: Path = _CPUINFO) -> bool:
    """Let oneDNN compute this process's float32 products where it is the faster one. True if it does now.

    No effect on a GPU's products: call it only if ``device`` is where the networks are.
    """
    if device.type != "cpu" or not mkl_is_held_back(cpuinfo):
        return False
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    error = error_of_a_product()
    if not error <= MOST_ERROR:
        torch.set_float32_matmul_precision(before)
        logger.info("matrix products: MKL, since oneDNN's have errors of %.0e on this CPU", error)
        return False
    logger.info("matrix products: oneDNN, since MKL does not use AVX-512 on this CPU")
    return True


def mkl_is_held_back(cpuinfo: Path = _CPUINFO) -> bool:
    """True if MKL, where torch has it, does not use this processor's AVX-512."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:  # no Linux
        return False
    found = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in lines)}
    return found.get("vendor_id", []) not in ([], ["GenuineIntel"]) and "avx512f" in found.get("flags", [])


def error_of_a_product() -> float:
    """Largest error of a float32 product of irregular numbers, relative to the sum of its terms' absolute values."""
    rows, weights = _numbers(256, 128), _numbers(128, 128)
    exact = rows.double() @ weights.double()
    size = rows.double().abs() @ weights.double().abs()
    return float((((rows @ weights).double() - exact).abs() / size).max())


def error_of_a_layer() -> float:
    """Largest difference of a layer of irregular numbers from torch's, relative to the largest number."""
    rows, weights, bias = _numbers(50, 40), _numbers(64, 40), _numbers(64)
    norm = torch.nn.LayerNorm(64, dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):  # whatever the caller has chosen
        layers_in_c = dense.library_for(rows, weights)
        assert layers_in_c is not None
        found = dense.dense(layers_in_c, rows, weights, bias, norm, 0.2)[0]
        expected = F.leaky_relu(norm(F.linear(rows, weights, bias)), 0.2)
        return float((found - expected).abs().max() / expected.abs().max())


def _numbers(*shape: int) -> torch.Tensor:
    """Irregular numbers between -1 and 1, always the same ones."""
    count = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    return (count.pow(1.5) * math.e).sin().float().view(shape)
