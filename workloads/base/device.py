"""Torch devices by name and their compilers; libraries, threads and cache of a CPU; parts of a batch, summed."""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F

from common.errors import BadInputError
from common.memory import keep_freed_memory
from common.paths import changed_by_others, make_for_owner
from workloads.base.native.layers import LAYERS, library_for, pooled
from workloads.base.segments import Segments

logger = logging.getLogger(__name__)

MOST_ERROR = 1e-6
"""Largest error of a product, relative to the sum of its terms' absolute values; float32 reaches 2e-7."""
_CPUINFO = Path("/proc/cpuinfo")
_BYTES_OF_A_PARTICLE = 256
"""Share of a particle in the cache: a part is as large as it may be without a layer's rows being far larger."""


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


def particles_in_cache(cache_bytes: int) -> int:
    """Particles of a part on a CPU with a second-level cache of so many bytes; 0: not known. A power of two.

    A property of the machine, not a measurement: parts draw their noise one after the other, so that a run resumed
    with parts of another size would differ.
    """
    at_once = (cache_bytes or 1 << 20) // _BYTES_OF_A_PARTICLE
    return min(max(1 << at_once.bit_length() - 1, 1024), 16384)


def second_level_cache_bytes(size: Path = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")) -> int:
    """Size of a core's second-level cache, 0 if it is not known."""
    try:
        return int(size.read_text().strip().removesuffix("K")) << 10
    except (OSError, ValueError):
        return 0


def tune_cpu(device: torch.device) -> None:
    """Let this process compute layers and products in the fastest way that keeps float32's accuracy, if on a CPU.

    Layers are computed in C++ where there is a compiler (workloads/base/native). For other products torch has two
    libraries for float32: MKL, its default, and oneDNN, which it uses if `torch.set_float32_matmul_precision` allows
    less than float32. MKL uses AVX-512 on Intel's processors only; oneDNN on any, and on those without units for
    bfloat16 tiles (AMX) in full float32. The choice is by properties of the machine and by the error of a product, not
    by the time that one takes: a resumed run would otherwise be free to choose anew, and its bits would differ.
    """
    if device.type != "cpu":
        return
    keep_freed_memory()
    choose_matrix_products()
    if not LAYERS.use():
        return
    error = error_of_a_layer()
    if not error <= MOST_ERROR:  # also of NaN
        LAYERS.used = None
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
            _before = torch.get_float32_matmul_precision(), LAYERS.used is not None
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
                    LAYERS.used = None


def choose_matrix_products(cpuinfo: Path = _CPUINFO) -> bool:
    """Let oneDNN compute this process's float32 products where it is the faster one. True if it does now."""
    if not mkl_is_held_back(cpuinfo):
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


@cache  # it is the machine's, and generation asks for each piece
def error_of_a_product() -> float:
    """Largest error of a float32 product of irregular numbers, relative to the sum of its terms' absolute values."""
    rows, weights = _numbers(256, 128), _numbers(128, 128)
    exact = rows.double() @ weights.double()
    size = rows.double().abs() @ weights.double().abs()
    return float((((rows @ weights).double() - exact).abs() / size).max())


@cache
def error_of_a_layer() -> float:
    """Largest difference of pooled layers of irregular numbers from torch's, relative to the largest number."""
    rows, weights, context = _numbers(50, 40), _numbers(64, 40), _numbers(5, 64)
    second, norm = (_numbers(64, 64), _numbers(64)), torch.nn.LayerNorm(64, dtype=torch.float32)
    segments = Segments.from_counts(torch.full((5,), 10), 50)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):  # whatever the caller has chosen
        library = library_for(rows, weights)
        assert library is not None
        found, _ = pooled(library, rows, context, segments, (weights, norm), (*second, norm), 0.2)
        hidden = F.leaky_relu(norm(F.linear(rows, weights) + context.repeat_interleave(10, 0)), 0.2)
        values = F.leaky_relu(norm(F.linear(hidden, *second)), 0.2).unflatten(0, (5, 10))
        expected = torch.cat([values.mean(1), values.amax(1)], 1)
        return float((found - expected).abs().max() / expected.abs().max())


def _numbers(*shape: int) -> torch.Tensor:
    """Irregular numbers between -1 and 1, always the same ones."""
    count = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    return (count.pow(1.5) * math.e).sin().float().view(shape)


CPU_CHUNK_PARTICLES = particles_in_cache(second_level_cache_bytes())
"""Particles of a part on a CPU, if not configured: 4,096 for a cache of 1 MiB a core."""
CUDA_SHARE = 0.5
"""Share of a GPU's memory for the networks' values of one part, at most."""


class BatchPart(Protocol):
    """Events of a batch, as input of a network."""

    @property
    def num_particles(self) -> int:
        """Particles of all its events."""

    def halves(self) -> Sequence[BatchPart]:
        """Two parts with about half of the particles each; the part itself if it can't be divided."""


PartT = TypeVar("PartT", bound=BatchPart)
Result = TypeVar("Result")


def most_particles(configured: int, device: torch.device, on_cpu: int, particle_bytes: int = 0) -> int:
    """Largest number of particles of a part: ``configured``, or 0: ``on_cpu`` on a CPU, what fits in memory on a GPU.

    ``particle_bytes``: memory of an update for each particle, about; 0: unknown, no limit. A power of two, so that
    similar cards make the same parts: their noise depends on them.
    """
    if configured or device.type == "cpu":
        return configured or on_cpu
    if particle_bytes == 0:
        return sys.maxsize
    available = torch.cuda.get_device_properties(device).total_memory * CUDA_SHARE
    return 1 << max(int(available / particle_bytes).bit_length() - 1, 0)


class PartPool:
    """Pool of threads that compute parts."""

    def __init__(self, threads: int) -> None:
        """``threads`` 1: parts are computed in the calling thread, one after the other."""
        # A new thread starts with OpenMP's default, one thread for each core, and MKL follows it: each product would be
        # split among busy cores, with other bits than in the calling thread.
        one_thread = partial(torch.set_num_threads, torch.get_num_threads())
        self._pool = ThreadPoolExecutor(threads, "step", one_thread) if threads > 1 else None

    def map(self, compute: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
        """Results in the order of the parts, so that sums of them don't depend on the number of threads.

        ``arguments`` are read in the calling thread, in order: random numbers may be drawn there.
        """
        if self._pool is None:
            return map(compute, *arguments)
        return self._pool.map(compute, *arguments)


def halves_of(parts: Sequence[PartT]) -> list[PartT]:
    """Return parts that need about half of the memory, for a batch that ran out of it."""
    torch.cuda.empty_cache()
    num_particles = sum(part.num_particles for part in parts)
    logger.warning("out of memory with %d particles: the batch is split in two", num_particles)
    halves: list[Any] = [half for part in parts for half in part.halves()]
    return halves


# ---- Whether `torch.compile` can work here.


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
