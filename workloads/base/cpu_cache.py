"""Size of a part of a batch on a CPU, from the size of its cache."""

from __future__ import annotations

from pathlib import Path

_BYTES_OF_A_PARTICLE = 256
"""Share of a particle in the cache: a part is as large as it may be without a layer's rows being far larger."""


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
