"""Memory of the trainer, for TensorBoard, measured without waiting for the device."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_MIB = 1 << 20


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_scalars(device: torch.device) -> dict[str, float]:
    """Memory in MiB: resident memory of the process, and on CUDA that of the allocator.

    allocated: in tensors. reserved: taken from the device, cached memory included; max_reserved: the most so far.
    inactive_split: cached in pieces that only fit smaller tensors. free: of the whole device, other processes included.
    """
    found = {"memory/rss_mib": rss_bytes() / _MIB}
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        free_bytes, _ = torch.cuda.mem_get_info(device)
        found |= {
            "memory/allocated_mib": stats.get("allocated_bytes.all.current", 0) / _MIB,
            "memory/reserved_mib": stats.get("reserved_bytes.all.current", 0) / _MIB,
            "memory/max_reserved_mib": stats.get("reserved_bytes.all.peak", 0) / _MIB,
            "memory/inactive_split_mib": stats.get("inactive_split_bytes.all.current", 0) / _MIB,
            "memory/free_mib": free_bytes / _MIB,
        }
    return found
