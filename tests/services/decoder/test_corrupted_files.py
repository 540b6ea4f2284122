"""Hundreds of damaged files through footer, plan and decoder: the right events or a named reason, and never a crash.

The files carry the checksums that their formats know: of pages (Parquet), of chunks (HDF5).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import damage
import pytest

FILES_OF_A_KIND = 60
PATIENCE_S = 120.0
ROOT = Path(__file__).resolve().parent.parent.parent.parent


class Worker:
    """A process that reads files, and is started again when it has crashed."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        self._process: subprocess.Popen[str] | None = None

    def outcome(self, path: Path) -> damage.Outcome:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        answer = process.stdout.readline() if ready else ""
        if not answer:
            process.kill()
            process.wait(PATIENCE_S)
            self._close_pipes()
            what = "crashed" if ready else f"hung for {PATIENCE_S:g} s"
            return damage.Outcome(wrong=f"{what} ({process.returncode}): {self._errors.read_text()[-500:]}")
        return damage.Outcome(**json.loads(answer))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._close_pipes()

    def _close_pipes(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process = None

    def _start(self) -> subprocess.Popen[str]:
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, damage.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            )
        return self._process


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path / "stderr")
    yield made
    made.close()


@pytest.mark.process
@pytest.mark.parametrize("kind", [*damage.PARQUET, *damage.HDF5])
def test_a_damaged_file_gives_its_right_events_or_is_refused_by_name(tmp_path: Path, worker: Worker, kind: str) -> None:
    path = tmp_path / "file"
    good = damage.write_good(path, kind)
    sound = worker.outcome(path)
    assert (sound.reasons, sound.wrong, len(sound.rows)) == ([], "", damage.NUM_EVENTS)
    num_refused = num_damaged = 0
    for seed in range(FILES_OF_A_KIND):
        path = tmp_path / f"file-{seed}"  # a name that the worker has not read yet
        raw = damage.damaged(good, random.Random(f"{kind} {seed}"))
        path.write_bytes(raw)
        found = worker.outcome(path)
        path.unlink()
        assert found.wrong == "", f"{kind}, seed {seed}: {found.wrong}, {found.reasons}"
        assert all(reason.startswith(f"{path}: ") and "\n" not in reason for reason in found.reasons)
        num_refused += bool(found.reasons)
        num_damaged += raw != good
    assert num_refused > num_damaged / 2


@pytest.mark.process
def test_the_worker_sees_wrong_events_and_crashes(tmp_path: Path, worker: Worker) -> None:
    """Without the worker's eyes the test above could not fail."""
    path = tmp_path / "file"
    tables = damage.tables_of(damage.the_events())
    tables["primaries"][5, 2] += 1
    damage.write_tables(path, tables)
    assert "row 5 is" in worker.outcome(path).wrong
    process = worker._process
    assert process is not None
    process.kill()
    assert "crashed" in worker.outcome(path).wrong
    assert "row 5 is" in worker.outcome(path).wrong
