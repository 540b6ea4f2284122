"""What the command does before anything heavy is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.config.root import Config, store_config

ROOT = Path(__file__).resolve().parent.parent.parent.parent

WATCHED = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("numpy", "pyarrow"):
            print(name, os.environ.get("OPENBLAS_NUM_THREADS"), len(os.sched_getaffinity(0)), flush=True)

sys.meta_path.insert(0, Watch())
import services.decoder.cores
services.decoder.cores._CLAIM = f"icestream-test-{os.getpid()}"  # no other decoder here is in the way
sys.argv = ["icestream", "decoder", "--run-dir", sys.argv[1], *sys.argv[2:]]
from icestream.cli import main
main()
"""


def at_first_import(run_dir: Path, *settings: str, **environment: str) -> dict[str, tuple[str, int]]:
    """BLAS threads and usable cores at the first import of numpy and of pyarrow, by a decoder that finds no fetcher."""
    store_config(run_dir, Config())
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    arguments = [part for text in ("transport.connect_timeout_s=0.1", *settings) for part in ("--set", text)]
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(run_dir), *arguments],
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no fetcher answered" in done.stderr, done.stderr
    found: dict[str, tuple[str, int]] = {}
    for line in done.stdout.splitlines():
        name, threads, cores = line.split()
        found.setdefault(name, (threads, int(cores)))
    return found


@pytest.mark.process
def test_the_threads_of_blas_are_set_before_numpy_is_imported(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    assert at_first_import(tmp_path, "decoder.threads=3") == {"numpy": ("3", cores), "pyarrow": ("3", cores)}


@pytest.mark.process
def test_what_the_user_has_set_stays(tmp_path: Path) -> None:
    found = at_first_import(tmp_path, "decoder.threads=3", OPENBLAS_NUM_THREADS="7")
    assert found["numpy"][0] == "7"


@pytest.mark.process
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_pinned_decoder_is_pinned_before_any_library_starts_threads(tmp_path: Path) -> None:
    found = at_first_import(tmp_path, "decoder.affinity=auto")
    assert {cores for _, cores in found.values()} == {1}
