"""Memory of the trainer, for TensorBoard, measured without waiting for the device."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import torch

from services.trainer.speed.gpu_status import MAX_ALLOCATED, RESERVED

_MIB = 1 << 20


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reset_peak(device: torch.device) -> None:
    """Begin a new maximum for peak_bytes(), where that is possible: on CUDA."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """Maximum memory: on CUDA in tensors since reset_peak(), else resident of this process since its start."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_scalars(device: torch.device) -> dict[str, float]:
    """Memory in MiB: resident memory of the process, and on CUDA that of the allocator.

    allocated: in tensors. reserved: taken from the device, cached memory included; max_…: the most so far.
    inactive_split: cached in pieces that only fit smaller tensors. free: of the whole device, other processes included.
    """
    found = {"memory/rss_mib": rss_bytes() / _MIB}
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        free_bytes, _ = torch.cuda.mem_get_info(device)
        found |= {
            "memory/allocated_mib": stats.get("allocated_bytes.all.current", 0) / _MIB,
            MAX_ALLOCATED: stats.get("allocated_bytes.all.peak", 0) / _MIB,
            RESERVED: stats.get("reserved_bytes.all.current", 0) / _MIB,
            "memory/max_reserved_mib": stats.get("reserved_bytes.all.peak", 0) / _MIB,
            "memory/inactive_split_mib": stats.get("inactive_split_bytes.all.current", 0) / _MIB,
            "memory/free_mib": free_bytes / _MIB,
        }
    return found
