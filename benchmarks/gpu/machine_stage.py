"""Machine: card, driver, versions, host. One row of texts."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
from importlib import metadata
from pathlib import Path

import torch

from benchmarks.gpu.channel import Channel
from benchmarks.gpu.setting import Setting
from common.errors import BadInputError
from workloads.base.device import device_named

LEAST_TORCH = (2, 7)
_NVIDIA_SMI = "driver_version,power.limit,clocks.max.sm,clocks.max.memory,persistence_mode,mig.mode.current"
_PACKAGES = ("numpy", "triton", "pydantic", "pyarrow", "pyzmq", "nvidia-ml-py", "pytest")


def run(setting: Setting, channel: Channel) -> None:
    """Row of the machine. Raises BadInputError for a device that isn't there."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < LEAST_TORCH:
        raise SystemExit(f"torch {torch.__version__} is too old: 2.7 or newer is needed")
    if setting.device == "auto":
        raise BadInputError("--device auto: name the device to measure, cuda, cuda:N or cpu")
    device = device_named(setting.device)
    row: dict[str, str] = {"device": _processor()}
    if device.type == "cuda":
        row = _card(device)
    row |= {
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}",
        "python": platform.python_version(),
        "packages": ", ".join(filter(None, map(_version, _PACKAGES))) or "none of those looked for",
        "host": f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {_memory_gib():.0f} GiB, {platform.release()}",
        "locked_memory": _locked_memory(),
    }
    channel.row(**row)


def _card(device: torch.device) -> dict[str, str]:
    of = torch.cuda.get_device_properties(device)
    return {
        "device": of.name,
        "card": f"compute capability {of.major}.{of.minor}, {of.multi_processor_count} multiprocessors,"
        f" {of.total_memory / 2**30:.1f} GiB, L2 {of.L2_cache_size / 2**20:.0f} MiB",
        "driver": _nvidia_smi(device),
    }


def _nvidia_smi(device: torch.device) -> str:
    """Driver and limits of the card by NVIDIA's tool, or the driver's version alone."""
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={_NVIDIA_SMI}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        version = Path("/proc/driver/nvidia/version")
        return version.read_text().splitlines()[0] if version.is_file() else "unknown: nvidia-smi did not answer"
    return ", ".join(
        f"{name} {value.strip()}"
        for name, value in zip(_NVIDIA_SMI.split(","), done.stdout.strip().split(","), strict=False)
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return ""


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _locked_memory() -> str:
    """Limit of page-locked memory, as `ulimit -l` shows it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft / 1024:,.0f} KiB"
