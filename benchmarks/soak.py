"""Soak test: memory, descriptors and threads of every process of a run, for hours.

Question: does anything grow? Asked: less than 1 MB a minute of resident memory in every process after the warm-up, no
growth of descriptors or threads.

Command, from the repository's root:

    python -m benchmarks.soak [--minutes 30] [--warm-up-minutes 8] [--decoders 2] [--run-dir DIR]

A run of `icestream run` on simulated files, without end (`epochs=0`), with outliers in the stream, panel, checkpoints
and TensorBoard as usual; sampled every 5 s in /proc, ended by Ctrl-C. Exit code 1 if something grew. Kill and resume
are tested in `tests/pipeline/test_kill.py`.

Table: a line a process: memory at the end of the warm-up and at the end, slope (least squares over the time after the
warm-up, and over its last half, where the allocator's pools are full), descriptors and threads at both ends.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workloads.muons.simulator.config import preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset

LIMIT_MB_PER_MINUTE = 1.0
_LOOK_S = 5.0


@dataclass(frozen=True)
class Look:
    """Sample of one process at one time."""

    minutes: float
    rss_mb: float
    descriptors: int
    threads: int


def main() -> None:
    parser = argparse.ArgumentParser(description="Soak test of a whole run.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--warm-up-minutes", type=float, default=8.0)
    parser.add_argument("--decoders", type=int, default=2)
    parser.add_argument("--run-dir", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data, run_dir = Path(temporary) / "data", arguments.run_dir or Path(temporary) / "run"
        write_dataset(data, preset("bench"), DatasetPlan(200_000, 16, seed=5))
        looks = soak(data, run_dir, arguments.decoders, arguments.minutes)
        summary = json.loads((run_dir / "summary.json").read_text())
    grew = report(looks, arguments.warm_up_minutes)
    print(f"events trained: {summary['events_trained']:,}, steps: {summary['steps']:,}, adds up: {summary['adds_up']}")
    sys.exit(1 if grew or not summary["adds_up"] else 0)


def soak(data: Path, run_dir: Path, decoders: int, minutes: float) -> dict[str, list[Look]]:
    """Run, sample, and interrupt. Returns the samples by process."""
    command = [
        *(sys.executable, "-m", "icestream", "run", "-i", str(data), "--run-dir", str(run_dir)),
        *("--decoders", str(decoders), "--device", "cpu"),
        *("--set", "epochs=0", "--set", "stream.max_particles_per_event=200", "--set", "trainer.checkpoint_every=100"),
    ]
    looks: dict[str, list[Look]] = defaultdict(list)
    with (run_dir.parent / "soak.log").open("w") as log:
        run = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        began_s = time.monotonic()
        try:
            while (passed := (time.monotonic() - began_s) / 60) < minutes and run.poll() is None:
                for name, pid in processes(run.pid):
                    look = look_at(pid, passed)
                    if look is not None:
                        looks[name].append(look)
                time.sleep(_LOOK_S)
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(120)
    return looks


def processes(supervisor: int) -> list[tuple[str, int]]:
    """Name and id of the run's processes: the supervisor and its children."""
    found = [("supervisor", supervisor)]
    try:
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    except OSError:
        return []
    for child in map(int, children):
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        name = next((word.decode() for word in words if word in (b"fetcher", b"decoder", b"trainer")), "")
        if name:
            found.append((f"{name} {child}", child))
    return found


def look_at(pid: int, minutes: float) -> Look | None:
    """Sample of a process; None if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return None
    return Look(minutes, pages * 4096 / 1e6, descriptors, threads)


def report(looks: dict[str, list[Look]], warm_up_minutes: float) -> bool:
    """Print the table; True if something grew."""
    print("process | MB after warm-up | MB at the end | MB/min | MB/min, last half | descriptors | threads")
    grew = False
    for name, all_looks in sorted(looks.items()):
        after = [look for look in all_looks if look.minutes >= warm_up_minutes]
        if len(after) < 10:
            continue
        slope, late = slope_of(after), slope_of(after[len(after) // 2 :])
        first, last = after[0], after[-1]
        fds = [look.descriptors for look in after]
        threads = [look.threads for look in after]
        more = min(fds[len(fds) // 2 :]) > max(fds[: len(fds) // 2])
        more |= min(threads[len(threads) // 2 :]) > max(threads[: len(threads) // 2])
        bad = slope >= LIMIT_MB_PER_MINUTE or more
        grew |= bad
        print(
            f"{name} | {first.rss_mb:.1f} | {last.rss_mb:.1f} | {slope:.3f} | {late:.3f} | "
            f"{min(fds)}-{max(fds)} | {min(threads)}-{max(threads)}{' | GREW' if bad else ''}"
        )
    return grew


def slope_of(looks: list[Look]) -> float:
    """Slope in MB a minute, by least squares."""
    return float(np.polyfit([look.minutes for look in looks], [look.rss_mb for look in looks], 1)[0])


if __name__ == "__main__":
    main()
