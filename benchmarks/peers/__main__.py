"""icestream's Python API beside other loaders, on the same Parquet files.

Question: a physicist has Parquet files with ragged lists and a training loop of her own. How many events a second
does each loader deliver as torch tensors, what does it need before (conversion, start-up, memory), and which events
are lost, repeated or reordered when she stops in mid-epoch, continues with another number of workers, or the process
is killed?

Commands, from the repository's root, in an environment that has icestream; the loaders are no dependency of it:

    pip install -r benchmarks/peers/requirements.txt
    python -m benchmarks.peers [--only LOADER] [--skip resume|speed] [--repeats 3] [--seconds 4] [--each] [--out FILE]

Each measurement is a process of its own; the loaders take turns. The data are simulated (`icestream simulate`), two
sets with a column of the user's own (data.py): 100,000 events for the speed, 40,000 for resuming. But for those that
convert event by event, loaders get them ten times (copies): a window of a fast one is not full of ends of epochs. A
loader that is not installed is named on the page.

The speed is measured as it is, and with all of these switched on that a loader has: a filter, two sets mixed 7:3, a
transform of the muons in the workers, the user's column (features.py); with `--each` also one by one. Each measurement
looks at a batch: filtered, transformed and complete as asked.

Table: printed, and written to benchmarks/results/DATE-peers.md after each turn. Medians, smallest and largest of the
repetitions. CPU time is that of all processes, per event delivered: it depends less on other work of the machine.
What each loader has, by its documentation: claims.py.

Reading: loaders that handle a row at a time in Python and those that do not differ by orders of magnitude. On a busy
machine compare the CPU times. A filter that keeps a sixth of the events makes those that it keeps dearer.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.peers.data import copied, simulated
from benchmarks.peers.features import FEATURES
from benchmarks.peers.loaders import PEERS
from benchmarks.peers.measure import MeasurementFailed, measure_prepare, measure_resume, measure_speed
from benchmarks.peers.table import ALL, PLAIN, Findings, Setting, page

ROOT = Path(__file__).resolve().parent.parent.parent
EVENTS, FILES, COPIES, BATCH_EVENTS = 100_000, 10, 10, 4096
RESUME_EVENTS, RESUME_FILES, RESUME_BATCH_EVENTS = 40_000, 20, 512
WORKERS = 2
RESUME_WORKERS, OTHER_WORKERS = 2, 3
SEED = 1

Say = Callable[[str], None]


def main() -> int:
    names = [peer.module for peer in PEERS]
    parser = argparse.ArgumentParser(description="icestream's Python API beside other loaders.")
    parser.add_argument("--only", choices=names, action="append", help="only this loader")
    parser.add_argument("--skip", choices=("speed", "resume"), help="leave this part out")
    parser.add_argument("--repeats", type=int, default=3, help="of each speed (default: 3)")
    parser.add_argument("--each", action="store_true", help="also with each feature alone")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a window (default: 4)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{date.today()}-peers.md")
    arguments = parser.parse_args()
    begun_s = time.monotonic()
    loads: list[float] = []

    def say(text: str) -> None:
        loads.append(os.getloadavg()[0])
        print(f"{time.monotonic() - begun_s:6.0f} s  load {loads[-1]:4.1f}  {text}", flush=True)

    findings = [Findings(peer) for peer in PEERS if not arguments.only or peer.module in arguments.only]
    present = [one for one in findings if not one.peer.missing]
    for one in findings:
        if one.peer.missing:
            say(f"{one.peer.module}: not installed ({', '.join(one.peer.missing)})")
    source_bytes = 0

    def write() -> str:
        setting = Setting(
            command=" ".join(["python -m benchmarks.peers", *sys.argv[1:]]),
            events=EVENTS,
            copies=COPIES,
            source_bytes=source_bytes,
            batch_events=BATCH_EVENTS,
            workers=WORKERS,
            seconds=arguments.seconds,
            resume_events=RESUME_EVENTS,
            resume_batch_events=RESUME_BATCH_EVENTS,
            other_workers=OTHER_WORKERS,
            loads=loads,
            commit=commit(),
            minutes=(time.monotonic() - begun_s) / 60,
        )
        text = page(str(date.today()), setting, findings)
        arguments.out.write_text(text)
        return text

    with tempfile.TemporaryDirectory(prefix="icestream-peers-") as made:
        folder = Path(made)
        if arguments.skip != "speed":
            source = simulated(folder / "speed" / "data", EVENTS, FILES, SEED)
            source_bytes = sum(path.stat().st_size for path in source.rglob("*.parquet"))
            measure_speeds(folder / "speed", source, present, arguments, say, write)
        if arguments.skip != "resume":
            measure_resumes(folder / "resume", present, say)
    print(f"\n{write()}\nwritten: {arguments.out}")
    return 0


def measure_speeds(
    folder: Path,
    source: Path,
    findings: list[Findings],
    arguments: argparse.Namespace,
    say: Say,
    write: Callable[[], str],
) -> None:
    """Speeds of all loaders, in turn."""
    copies = copied(source, folder / "copies", COPIES)
    tasks = {}
    for one in findings:
        files = source if one.peer.is_by_row else copies
        tasks[one.peer.module] = prepared_task(one, files, folder, say, BATCH_EVENTS) | {"workers": WORKERS}
    for repeat in range(arguments.repeats):
        for variant in (PLAIN, ALL, *(FEATURES if arguments.each else ())):
            for one in findings:
                features = one.peer.has if variant == ALL else (variant,) if variant else ()
                if not set(features) <= set(one.peer.has):
                    continue
                try:
                    speed = measure_speed(tasks[one.peer.module] | {"features": features}, arguments.seconds)
                except MeasurementFailed as error:
                    say(f"{one.peer.module}, {variant or 'plain'}: {error}")
                    one.errors.append(f"speed, {variant or 'plain'}: {error}")
                    continue
                one.speeds.setdefault(variant, []).append(speed)
                say(
                    f"{one.peer.module}, {variant or 'plain'}, {repeat + 1}: {speed.events_per_s:,.0f} events/s, "
                    f"{speed.cpu_us:.2f} µs CPU, start-up {speed.startup_s:.1f} s, {speed.peak_bytes / 1e6:,.0f} MB, "
                    f"{speed.share:.3f} of the first set"
                )
        write()


def measure_resumes(folder: Path, findings: list[Findings], say: Say) -> None:
    """Resume of all loaders, one after the other."""
    source = simulated(folder / "data", RESUME_EVENTS, RESUME_FILES, SEED)
    for one in findings:
        task = prepared_task(one, source, folder, say, RESUME_BATCH_EVENTS, keep=False)
        try:
            one.resume = measure_resume(task, folder / f"ids-{one.peer.module}", RESUME_WORKERS, OTHER_WORKERS)
        except MeasurementFailed as error:
            one.errors.append(f"undisturbed epoch: {error}")
            say(f"{one.peer.module}: {error}")
            continue
        say(f"{one.peer.module}: {one.resume}")


def prepared_task(
    one: Findings, source: Path, folder: Path, say: Say, batch_events: int, *, keep: bool = True
) -> dict[str, Any]:
    """Task for a loader, after its conversion of the files."""
    module = one.peer.module
    prepared = folder / f"prepared-{module}"
    task = {"loader": module, "source": str(source), "prepared": str(prepared), "workers": 0}
    task |= {"batch_events": batch_events, "seed": SEED}
    if one.peer.conversion:
        try:
            found = measure_prepare(task)
        except MeasurementFailed as error:
            one.errors.append(f"conversion: {error}")
            say(f"{module}, conversion: {error}")
        else:
            say(f"{module}, conversion: {found[0]:.1f} s, {found[1] / 1e6:.1f} MB")
            if keep:
                one.prepared = found
    return task


def commit() -> str:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=9"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
