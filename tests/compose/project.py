"""A compose project in a copy of the checkout, and what the engine knows of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 240.0
COMPOSE = shlex.split(os.environ.get("COMPOSE", "docker compose"))
"""`docker compose` or docker-compose: the Makefile knows which of them is there."""
T = TypeVar("T")


def clone(target: Path) -> Path:
    """The checkout's tracked files alone, as in a fresh clone."""
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], check=True, capture_output=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def ask(*command: str) -> str:
    """Output of a command that has to succeed."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


class ComposeProject:
    """One project: `docker compose` with a name, variables and further files."""

    def __init__(
        self, folder: Path, name: str, variables: Mapping[str, str] | None = None, files: Sequence[Path] = ()
    ) -> None:
        self.folder, self.name = folder, name
        variables = variables or {}
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")} | variables
        chosen = [argument for file in ("docker-compose.yml", *files) for argument in ("-f", str(file))]
        self._command = [*COMPOSE, "-p", name, *(chosen if files else [])]

    def compose(self, *arguments: str, fails: bool = False) -> str:
        """Output of `docker compose ARGUMENTS`, which has to succeed, or to fail."""
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        if (done.returncode != 0) is not fails:
            raise AssertionError(f"compose {shlex.join(arguments)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def containers(self, service: str, *, all_states: bool = False) -> list[str]:
        """Ids of a service's containers."""
        labels = (f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}")
        filters = [argument for label in labels for argument in ("--filter", f"label={label}")]
        return ask("docker", "ps", "-q", "--no-trunc", *filters, *(["--all"] if all_states else [])).split()

    def state(self, service: str) -> dict[str, Any]:
        """What `docker inspect` tells of a service's only container."""
        (container,) = self.containers(service, all_states=True)
        (told,) = json.loads(ask("docker", "inspect", container))
        return dict(told)

    def status(self, name: str) -> dict[str, Any]:
        """Newest status of a service of the run, read by the fetcher's container; empty before there is one."""
        found = self.containers("fetcher")
        if not found:
            return {}
        read = ["docker", "exec", found[0], "cat", f"/run-dir/status/{name}.json"]
        done = subprocess.run(read, capture_output=True, text=True)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def wait_for(self, event: Callable[[], T | None], what: str) -> T:
        """First true value of ``event()``; with every container's log if it does not come."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            if value := event():
                return value
            time.sleep(0.2)
        raise AssertionError(f"waited {PATIENCE_S:g} s for {what}\n{self.compose('logs', '--no-color', '--tail=40')}")

    def down(self) -> None:
        """End everything, and delete the volumes."""
        self.compose("--profile", "tensorboard", "--profile", "monitoring", "down", "--volumes", "--timeout", "20")

    def left(self) -> list[str]:
        """Ids of the project's containers, volumes and networks."""
        mine = f"label=com.docker.compose.project={self.name}"
        return [
            f"{kind} {name}"
            for kind in ("container ls --all", "volume ls", "network ls")
            for name in ask("docker", *kind.split(), "--quiet", "--filter", mine).split()
        ]
