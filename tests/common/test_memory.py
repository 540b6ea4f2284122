"""Memory limits as the kernel tells them, in files that a test writes; threads and heap of a decoder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common import memory as memory_limit
from common.errors import BadInputError
from common.memory import available_memory_bytes
from common.transport import Arena
from services.config.root import Config, store_config

GIB = 1 << 30
UNLIMITED_1 = 9223372036854771712
"""What version 1 says of a group without a limit."""


class Kernel:
    """/proc of a machine with 64 GiB left, and mounts of control groups."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.sys = folder / "sys"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "meminfo").write_text(
            f"MemTotal: {64 << 20} kB\nMemAvailable: {60 << 20} kB\nSwapFree: {4 << 20} kB\n"
        )
        self.own = ""
        self.mounts = "21 20 0:5 / /proc rw - proc proc rw\n"

    def mount(self, version: int, path: str, root: str = "/") -> Path:
        """This process is in the group ``path``; what is mounted is ``root`` and all below."""
        mount = self.sys / str(version)
        mount.mkdir(parents=True)
        kind, controllers = ("cgroup2 cgroup2 rw", "") if version == 2 else ("cgroup cgroup rw,memory", "memory")
        self.own += f"{4 if version == 1 else 0}:{controllers}:{path}\n"
        self.mounts += f"3{version} 21 0:3{version} {root} {mount} rw,relatime shared:9 - {kind}\n"
        (self.proc / "self" / "cgroup").write_text("1:name=systemd:/init\n" + self.own)
        (self.proc / "self" / "mountinfo").write_text(self.mounts)
        return mount


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel(tmp_path)
    monkeypatch.setattr(memory_limit, "_PROC", kernel.proc)
    return kernel


def group(folder: Path, version: int, limit: int | str, used: int = 0, cache: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    prefix = "" if version == 2 else "total_"
    own = "" if version == 2 else f"inactive_file 1\nactive_file {64 * GIB}\n"  # of the group without those below it
    stat = f"anon 1\n{own}{prefix}inactive_file {cache // 2}\n{prefix}active_file {cache - cache // 2}\n"
    (folder / "memory.stat").write_text(stat)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("level", ["", "slurm", "slurm/job_7", "slurm/job_7/step_0/task_0"])
def test_a_limit_at_any_level_above_the_process_counts(kernel: Kernel, version: int, level: str) -> None:
    mount = kernel.mount(version, "/slurm/job_7/step_0/task_0")
    for other in ("", "slurm", "slurm/job_7", "slurm/job_7/step_0", "slurm/job_7/step_0/task_0"):
        group(mount / other, version, "max" if version == 2 else UNLIMITED_1, used=3 * GIB)
    group(mount / level, version, 8 * GIB, used=3 * GIB)
    group(mount / "slurm" / "job_8", version, GIB)  # somebody else's
    assert available_memory_bytes() == 5 * GIB
    with pytest.raises(BadInputError, match="does not fit into memory"):
        Arena.create(2, 3 * GIB)


@pytest.mark.parametrize("version", [1, 2])
def test_of_several_limits_the_least_that_is_left_counts_and_droppable_pages_are_left(
    kernel: Kernel, version: int
) -> None:
    mount = kernel.mount(version, "/a/b")
    group(mount / "a", version, 8 * GIB, used=8 * GIB, cache=2 * GIB)
    group(mount / "a" / "b", version, 6 * GIB, used=1 * GIB)
    assert available_memory_bytes() == 2 * GIB


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/", "/"),  # its own namespace of groups
        ("/docker/abc", "/docker/abc"),  # the host's paths, and its own group is mounted
        ("/docker/abc", "/"),  # the host's path, where only its own group can be seen
        ("/../other", "/"),  # outside of its namespace
    ],
)
def test_a_containers_limit_counts_however_its_groups_are_told(
    kernel: Kernel, version: int, path: str, root: str
) -> None:
    group(kernel.mount(version, path, root), version, 8 * GIB, used=GIB)
    assert available_memory_bytes() == 7 * GIB


def test_version_1_counts_beside_an_empty_version_2(kernel: Kernel) -> None:
    kernel.mount(2, "/")
    group(kernel.mount(1, "/job") / "job", 1, 8 * GIB)
    assert available_memory_bytes() == 8 * GIB


@pytest.mark.parametrize("damage", ["no files", "no number", "no statistics", "no groups"])
def test_what_can_not_be_read_is_no_limit(kernel: Kernel, damage: str) -> None:
    mount = kernel.mount(2, "/job")
    if damage in ("no number", "no statistics"):
        group(mount / "job", 2, "many" if damage == "no number" else GIB)
    if damage == "no statistics":
        (mount / "job" / "memory.stat").write_text("anon 1\n")
    if damage == "no groups":
        (kernel.proc / "self" / "cgroup").write_text("")
    assert available_memory_bytes() == 64 * GIB


ROOT = Path(__file__).resolve().parents[2]

WATCHED = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("numpy", "pyarrow"):
            print(name, os.environ.get("OPENBLAS_NUM_THREADS"), flush=True)

sys.meta_path.insert(0, Watch())
import common.config
common.config.CONNECT_TIMEOUT_S = 0.1
sys.argv = ["icestream", "decoder", "--run-dir", sys.argv[1], *sys.argv[2:]]
from icestream.cli import main
main()
"""


@pytest.mark.process
def test_the_threads_of_blas_are_set_before_numpy_is_imported(tmp_path: Path) -> None:
    store_config(tmp_path, Config())
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path), "--set", "decoder.threads=3"],
        env=inherited | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no fetcher answered" in done.stderr, done.stderr
    at_first_import = dict(line.split() for line in reversed(done.stdout.splitlines()))
    assert at_first_import == {"numpy": "3", "pyarrow": "3"}
