"""A disk that fills up while a run writes its checkpoints."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import Processes
from showers import Undisturbed

SIZE_MIB = 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of SIZE_MIB. Without the right to mount one the test is skipped, but not where CI is set."""
    folder = tmp_path / "small_disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mount.returncode:
        assert not os.environ.get("CI"), f"CI has to be able to mount a file system: {mount.stderr}"
        pytest.skip(f"can't mount a small file system here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for size_bytes in (1 << 16, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size_bytes))


@pytest.mark.slow
@pytest.mark.root
def test_a_full_disk_stops_the_run_with_its_name_and_the_run_goes_on_once_there_is_space(
    small_disk: Path, processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    processes.run_dir = small_disk / "run"
    run = processes.start_and_reach(5, command, before=undisturbed.steps)
    ballast = small_disk / "ballast"
    fill(ballast)
    processes.release()
    assert processes.finish(run) == 2, processes.report()
    assert "the disk is full" in run.output().splitlines()[-1]
    assert "Traceback" not in run.output() + "".join(processes.log(name) for name in ("fetcher", "trainer"))
    processes.assert_nothing_is_left()

    ballast.unlink()
    step = processes.checkpoint()["step"]  # the newest checkpoint is a whole one
    assert 5 <= step < undisturbed.steps
    assert not list((processes.run_dir / "checkpoints").glob("*.part"))
    processes.train(*command)
    assert f"resumes from step-{step:09d}.pt" in processes.log("trainer")
    undisturbed.assert_same(processes)
