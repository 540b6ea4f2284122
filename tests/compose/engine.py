"""A docker engine: the one that runs here, or an own one that ends with the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = ("docker.io", "docker-compose", "mmdebstrap")
"""Debian's names of what is needed."""
_START_S = 60.0


class NoEngine(Exception):
    """No engine can run here: the message says why."""


@contextmanager
def engine(workdir: Path) -> Iterator[None]:
    """Engine that `docker` reaches inside the block; an own one has its files, images included, below ``workdir``.

    Raises NoEngine.
    """
    if shutil.which("docker") is None:
        raise NoEngine(f"docker is not installed: apt-get install --no-install-recommends {' '.join(PACKAGES)}")
    if os.getuid() not in (0, 1000):
        raise NoEngine("only root, or uid 1000 as in the containers, can give them files to read")
    if subprocess.run(["docker", "info"], capture_output=True).returncode == 0:
        yield
        return
    if os.getuid() != 0:
        raise NoEngine("`docker info` finds no engine, and only root can start one")
    if shutil.which("dockerd") is None:
        raise NoEngine("`docker info` finds no engine, and dockerd is not installed (Debian: docker.io)")
    os.environ["DOCKER_HOST"] = f"unix://{workdir}/docker.sock"  # of this process and its children, to its end
    log = workdir / "dockerd.log"
    options = (
        *("--host", os.environ["DOCKER_HOST"]),
        *("--data-root", workdir / "images", "--exec-root", workdir / "exec", "--pidfile", workdir / "pid"),
        # It changes nothing of this machine's network. Builds use that of the host.
        *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
    )
    with log.open("wb") as output:
        daemon = subprocess.Popen(["dockerd", *map(str, options)], stdout=output, stderr=output)
    try:
        end_s = time.monotonic() + _START_S
        while subprocess.run(["docker", "info"], capture_output=True).returncode != 0:
            if daemon.poll() is not None or time.monotonic() > end_s:
                raise NoEngine("dockerd does not start here:\n" + "\n".join(log.read_text().splitlines()[-15:]))
            time.sleep(0.2)
        yield
    finally:
        daemon.terminate()
        daemon.wait(_START_S)
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if line.split()[1].startswith(f"{workdir}/"):
                subprocess.run(["umount", line.split()[1]], check=True)  # of its network namespaces
