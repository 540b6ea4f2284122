"""The cache on a disk that is really full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.plan import SourceFile
from services.fetcher.staging.cache import Cache, DiskFullError

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 5 MiB. Without the right to mount one the test is skipped, but not where CI is set."""
    folder = tmp_path / "small_disk"
    folder.mkdir(mode=0o700)
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=5m,mode=700", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mount.returncode:
        assert not os.environ.get("CI"), f"CI has to be able to mount a file system: {mount.stderr}"
        pytest.skip(f"can't mount a small file system here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.process
@pytest.mark.root
def test_a_disk_that_fills_up_in_mid_transfer_is_told_and_the_file_comes_once_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    cache = Cache(small_disk / "cache", tmp_path)
    first, second = (SourceFile(f"https://host/{number}.parquet", 2 * MIB) for number in range(2))
    ballast = small_disk / "ballast"

    def fetch(part: Path) -> None:
        with part.open("wb", buffering=0) as out:
            for _ in range(2 * MIB // 4096):
                out.write(bytes(4096))

    def fetch_beside_another(part: Path) -> None:
        ballast.write_bytes(bytes(2 * MIB))
        fetch(part)

    cache.get(first, fetch)
    with pytest.raises(DiskFullError, match=r"full: .*small_disk/cache has .* MiB free, the file needs 2\.0"):
        cache.get(second, fetch_beside_another)
    assert not list(small_disk.glob("cache/runs/*/parts/*"))
    assert cache.path(first).stat().st_size == 2 * MIB
    assert ballast.exists(), "it was begun"
    cache.drop(first)
    assert cache.get(second, fetch).stat().st_size == 2 * MIB
    cache.close()
