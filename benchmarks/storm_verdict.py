"""Verdict on a run in a storm (benchmarks/storm.py): its outcome, and errors that the storm doesn't explain."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.storm_strikes import STALL_TIMEOUT_S, Record

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "pipeline"))

from runs import Processes, same


@dataclass(frozen=True)
class Outcome:
    """Results of a run that must not depend on the storm."""

    audits: dict[str, bytes]
    outliers: dict[str, str]
    """Digest of each file."""
    events: dict[str, int]
    steps: int
    weights: Any

    @classmethod
    def of(cls, processes: Processes) -> Outcome:
        """Outcome read from the run directory."""
        run_dir, summary = processes.run_dir, processes.summary()
        outliers = {
            str(path.relative_to(run_dir)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((run_dir / "outliers").rglob("*.parquet"))
        }
        audits = {path.name: path.read_bytes() for path in run_dir.glob("audit*.jsonl")}
        return cls(audits, outliers, summary.events, summary["steps"], processes.checkpoint()["task"])

    def differences(self, other: Outcome) -> list[str]:
        """Names of the parts that are not bit-identical."""
        names = ("audits", "outliers", "events", "steps", "weights")
        return [f"other {name}" for name in names if not same(getattr(self, name), getattr(other, name))]


def problems(processes: Processes, record: Record, destination: Path, shared_memory: set[Path]) -> list[str]:
    """Problems of a run that has ended well, apart from its outcome."""
    run_dir, summary, found = processes.run_dir, processes.summary(), []
    processes.assert_nothing_is_left()  # no process, no abstract socket
    if not summary["adds_up"] or summary["events_read"] != sum(summary.events.values()):
        found.append(f"the sums: {dict(summary)}")
    if summary["num_quarantined"] or processes.fetcher.files_bad:
        found.append(f"quarantined: {summary['quarantined']}, {processes.fetcher.files_bad} files")
    left = [*run_dir.rglob("*.part"), *(run_dir / "sockets").glob("*"), *_locked_under(run_dir)]
    left += [*(files_in_shared_memory() - shared_memory), *run_dir.glob("cache/*/files/*")]
    found += [f"left: {path}" for path in left]
    newest = max((run_dir / "checkpoints").glob("step-*.pt"))
    copy = destination / "checkpoints" / newest.name
    if not copy.exists() or copy.read_bytes() != newest.read_bytes():
        found.append(f"{newest.name} was not copied")
    return found + told(processes, record)


def files_in_shared_memory() -> set[Path]:
    """Files in shared memory, without semaphores of multiprocessing, which other programs make at any time."""
    return {path for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.mp-")}


def told(processes: Processes, record: Record) -> list[str]:
    """Log messages of the processes about each other that the storm doesn't explain."""
    fetcher, found = processes.log("fetcher"), []
    fenced = set()
    for pid in map(int, re.findall(r"decoder (\d+)-\S* hangs", fetcher)):
        fenced.add(pid)
        if silence_s(record, pid) < 0.8 * STALL_TIMEOUT_S:
            found.append(f"decoder {pid} was fenced, silent by our doing for {silence_s(record, pid):.1f} s")
    for line in re.findall(r"unit \d+ failed \d+ time.*", fetcher):
        died = re.search(r"decoder (\d+)-\S* (died|hung)", line)
        if died is None or int(died[1]) not in record.killed | fenced:
            found.append(f"blamed: {line}")
    found += re.findall(r".*(?:skipping|quarantined): .*", fetcher)
    for path in sorted((processes.run_dir / "logs").glob("*.log")):
        found += [f"{path.name}: {error}" for error in tracebacks(path.read_text(errors="replace"))]
    for process in processes.started:
        output = process.output()
        found += tracebacks(output)
        found += re.findall(r".* was killed by (?!SIGKILL|SIGTERM).*", output)
        # A rank that is left alone ends by itself.
        exits = re.findall(r".* ended with exit code.*", output)
        found += [line for line in exits if not ("trainer" in line and "all trainers start again" in line)]
    return found


def tracebacks(text: str) -> list[str]:
    """Last line of each traceback."""
    return [part.lstrip("\n").splitlines()[-1] for part in re.findall(r"^Traceback .*\n(?:[ \t].*\n)*.*", text, re.M)]


def silence_s(record: Record, pid: int) -> float:
    """Longest time that a process was suspended while the fetcher was not; short interruptions are ignored."""
    spans: list[list[float]] = []
    for start_s, end_s in record.stops.get(pid, []):
        if spans and start_s - spans[-1][1] < 0.5:
            spans[-1][1] = max(end_s, spans[-1][1])
        else:
            spans.append([start_s, end_s])
    fetcher = [stop for one in record.fetchers for stop in record.stops.get(one, [])]
    return max((end - start - _covered_s(start, end, fetcher) for start, end in spans), default=0.0)


def _covered_s(start_s: float, end_s: float, spans: Sequence[Sequence[float]]) -> float:
    """Part of an interval that lies in some span."""
    covered_s, reached_s = 0.0, start_s
    for one_s, other_s in sorted(spans):
        covered_s += max(0.0, min(other_s, end_s) - max(one_s, reached_s))
        reached_s = max(reached_s, min(other_s, end_s))
    return covered_s


def _locked_under(folder: Path) -> list[str]:
    """Locks that some process holds on files and folders of the run."""
    held = {int(line.split()[5 if "->" not in line else 6].split(":")[2]) for line in _lines("/proc/locks")}
    return [f"lock of {path}" for path in [folder, *folder.rglob("*")] if path.stat().st_ino in held]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
