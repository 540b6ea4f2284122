"""A federation's files for whole runs, and what the tests of such runs share."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path

import pytest
from faulty_services import AGAIN_VARIABLE
from federation.federation import Federation
from federation.xrootd import available
from runs import COUNTING, Process, Processes, settings
from showers import EPOCHS, Showers

numbers = itertools.count()

FEW_TRIES = settings("pelican.list_tries=2")
HASTY = settings("pelican.connect_timeout_s=2", "pelican.read_timeout_s=1")
"""For servers that hang. A busy machine may be as slow as they are: then a file is asked for once more."""
ONLY_LIGHT = pytest.mark.parametrize("started_federation", ["light"], indirect=True)
"""For what XRootD shows in other tests, here or in tests/common/pelican."""
ONLY_REAL = pytest.mark.parametrize(
    "started_federation",
    ["xrootd" if available() or os.environ.get("REQUIRE_XROOTD") == "1" else "light"],
    indirect=True,
)
"""For what light servers show in other tests; they stand in where XRootD isn't installed."""
ONE_AHEAD = settings("stream.block_files=1", "fetcher.blocks_ahead=1")


class Served:
    """The showers in a folder of the federation of their own: caches keep what they have seen."""

    def __init__(self, federation: Federation, showers: Showers, folder: Path, namespace: str = "/public") -> None:
        self.federation = federation
        self.path = f"{namespace}/showers{os.getpid()}-{next(numbers)}"
        self.names = [path.name for path in showers.write(folder)]
        for name in self.names:
            federation.put(f"{self.path}/{name}", (folder / name).read_bytes())
        federation.log.clear()

    @property
    def input(self) -> list[str]:
        return ["-i", self.federation.url(f"{self.path}/*.parquet")]

    def gets(self) -> Counter[str]:
        """Files that were asked for, by name: whole ones."""
        found = Counter()
        for entry in list(self.federation.log):
            if entry["method"] == "GET" and str(entry["server"]).startswith("cache") and self.path in entry["path"]:
                found[entry["path"].rsplit("/", 1)[1]] += entry["status"] == 200
        return found


@pytest.fixture
def environment(federation: Federation) -> dict[str, str]:
    wanted = federation.environment()
    return wanted | {name: "" for name in os.environ if name not in wanted}


@pytest.fixture
def served(federation: Federation, showers: Showers, tmp_path: Path) -> Served:
    return Served(federation, showers, tmp_path / "served")


def arguments(served: Served, *more: str) -> list[str]:
    return [*served.input, *settings(*COUNTING), "--epochs", str(EPOCHS), *FEW_TRIES, *more]


def start_impatient(
    processes: Processes, command: list[str], environment: dict[str, str], pause_s: float = 0.2
) -> Process:
    """`icestream run` that soon tries again what may pass, with a brake: who only counts is at the end in a moment."""
    brake = processes.brake(pause_s=pause_s)
    return processes.start("run", *command, environment=environment | brake | {AGAIN_VARIABLE: "0.5"})


def problem(processes: Processes) -> str:
    """What the fetcher says keeps it from going on."""
    return processes.fetcher.problem


def assert_refused(processes: Processes, outcome: tuple[int, str], told: str) -> None:
    exit_code, output = outcome
    assert exit_code == 2, output
    assert told in output
    assert "Traceback" not in output + processes.log("fetcher") + processes.log("trainer")
