"""Use of the GPU as the status file has it."""

from __future__ import annotations

from common.status import GpuStatus
from services.trainer.speed.gpu_status import gpu_status


def test_a_cpu_has_none() -> None:
    assert gpu_status({"memory/rss_mib": 100.0}) is None


def test_memory_is_in_bytes_and_what_nvml_does_not_say_is_unknown() -> None:
    memory = {"memory/mean_allocated_mib": 1.5, "memory/max_allocated_mib": 2.0, "memory/reserved_mib": 4.0}
    expected = GpuStatus(allocated_mean_bytes=3 << 19, allocated_max_bytes=2 << 20, reserved_bytes=4 << 20)
    assert gpu_status(memory) == expected
    nvml = {"gpu/utilisation": 0.5, "gpu/memory_utilisation": 0.25, "gpu/memory_share": 0.75}
    shares = {"utilisation": 0.5, "memory_utilisation": 0.25, "memory_share": 0.75}
    assert gpu_status(memory | nvml) == expected.model_copy(update=shares)
