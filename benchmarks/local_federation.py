"""Local federation in a separate process: its servers must not share the interpreter of a benchmark.

The child ends when its standard input is closed, however the parent ends.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.federation.federation import Federation
from tests.federation.xrootd import available


class LocalFederation:
    """Local federation with one cache: a single data server to compare with.

    ``sets``: directory, number of files, bytes of each. ``counted``: XRootD behind its proxy, which counts requests and
    is slower. The environment of this process trusts the federation afterwards.
    """

    def __init__(self, sets: Sequence[tuple[str, int, int]], *, light: bool, counted: bool = False) -> None:
        self.kind = "light" if light or not available() else "xrootd"
        command = [sys.executable, "-m", "benchmarks.local_federation", self.kind, json.dumps(list(sets))]
        if counted:
            command.append("--counted")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        told = self._ask()
        os.environ.update(told["trust"])
        self.discovery_host: str = told["discovery_host"]
        self.data_server: str = told["data_server"]

    def requests(self) -> dict[str, int]:
        """Numbers of requests by server and method, since the last call; XRootD's only if ``counted``."""
        assert self._process.stdin is not None
        self._process.stdin.write("requests\n")
        self._process.stdin.flush()
        return dict(self._ask())

    def __enter__(self) -> LocalFederation:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _ask(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the local federation ended with {self._process.wait()}")
        return dict(json.loads(line))


def main() -> None:
    parser = argparse.ArgumentParser(description="Used by the benchmarks.")
    parser.add_argument("kind", choices=("light", "xrootd"))
    parser.add_argument("sets")
    parser.add_argument("--counted", action="store_true")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="federation-") as folder,
        Federation(Path(folder), caches=1, kind=arguments.kind, proxied=arguments.counted) as federation,
    ):
        for directory, num_files, size_bytes in json.loads(arguments.sets):
            names = (f"{i:07d}.parquet" for i in range(num_files))
            federation.put_many(directory, names, os.urandom(size_bytes))
        server = federation.processes[1].url if federation.processes else federation.caches[0].url
        told = {
            "trust": federation.certs.client_env(),
            "discovery_host": federation.discovery_host,
            "data_server": server,
        }
        print(json.dumps(told), flush=True)
        for _ in sys.stdin:
            print(json.dumps(federation.requests()), flush=True)


if __name__ == "__main__":
    main()
