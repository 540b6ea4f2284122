"""Use of the GPU in the status file, from the scalars of a log step. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from common.status import GpuStatus

GPU_UTILISATION = "gpu/utilisation"
GPU_MEMORY_UTILISATION = "gpu/memory_utilisation"
GPU_MEMORY_SHARE = "gpu/memory_share"
MEAN_ALLOCATED = "memory/mean_allocated_mib"
MAX_ALLOCATED = "memory/max_allocated_mib"
RESERVED = "memory/reserved_mib"


def gpu_status(scalars: Mapping[str, float]) -> GpuStatus | None:
    """Use of the GPU; None if there is none."""
    if RESERVED not in scalars:
        return None

    def num_bytes(name: str) -> int | None:
        return int(scalars[name] * 2**20) if name in scalars else None

    return GpuStatus(
        utilisation=scalars.get(GPU_UTILISATION),
        memory_utilisation=scalars.get(GPU_MEMORY_UTILISATION),
        memory_share=scalars.get(GPU_MEMORY_SHARE),
        allocated_mean_bytes=num_bytes(MEAN_ALLOCATED),
        allocated_max_bytes=num_bytes(MAX_ALLOCATED),
        reserved_bytes=num_bytes(RESERVED),
    )
