"""Size of a part from that of the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from workloads.base.cpu_cache import particles_in_cache, second_level_cache_bytes


@pytest.mark.parametrize(
    ("cache_kib", "particles"),
    [(1024, 4096), (1280, 4096), (2048, 8192), (512, 2048), (256, 1024), (64, 1024), (1 << 20, 16384), (0, 4096)],
)
def test_parts_are_as_large_as_the_cache_allows(cache_kib: int, particles: int) -> None:
    assert particles_in_cache(cache_kib << 10) == particles


def test_the_size_of_the_cache_is_read_from_the_system(tmp_path: Path) -> None:
    size = tmp_path / "size"
    assert second_level_cache_bytes(size) == 0
    size.write_text("2048K\n")
    assert second_level_cache_bytes(size) == 2 << 20
    size.write_text("")
    assert second_level_cache_bytes(size) == 0
