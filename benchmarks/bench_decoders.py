"""Scaling of the input side with the number of decoders.

Question: does the input side scale with decoder processes, with a trainer that only counts? Asked: two decoders on two
cores at least 1.6 × as fast as one.

Command, from the repository's root:

    python -m benchmarks.bench_decoders [--decoders 1 2] [--repeats 5] [--seconds 4]

Real processes: `icestream fetcher` and N × `icestream decoder`; the trainer is this process, which takes units through
the real transport, checks each header and releases the slot. Shuffled units of 65,536 events, endless epochs;
counted from the tenth unit on, for `--seconds`. The cases take turns; medians.

Table: events/s, and their ratio to the first number of decoders; share of the time in which the dispatcher had no free
slot (the trainer is the bottleneck) or no credit (the decoders are).

Reading: on two cores the fetcher, the counting trainer and the kernel share them with the decoders. A second decoder
doubles the decoding rate as long as nothing else is short.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench_decoder import make_files
from common import messages as m
from common.status import FetcherStatus, read_status
from common.transport import PeerTransport
from common.unit_arrays import SlotHeader, check_header
from services.config.root import Config, store_config

UNIT_EVENTS = 65_536
WARM_UP_UNITS = 10
IN_ADVANCE = 4


def main() -> None:
    parser = argparse.ArgumentParser(description="Events a second of N decoders.")
    parser.add_argument("--decoders", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    found: dict[int, list[float]] = {number: [] for number in arguments.decoders}
    stalls: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(Path(folder) / "data", 655_360, 10_000)
        for repeat in range(arguments.repeats):
            for number in arguments.decoders:
                run_dir = Path(folder) / f"run-{repeat}-{number}"
                rate, stalls[number] = measure(run_dir, files, number, arguments.seconds)
                found[number].append(rate)
    first = statistics.median(found[arguments.decoders[0]])
    print(f"{'decoders':>8}{'events/s':>14}{'against':>9}{'no free slot':>14}{'no credit':>11}")
    ratios = {}
    for number, rates in found.items():
        rate = statistics.median(rates)
        ratios[number] = round(rate / first, 3)
        shares = stalls[number]
        print(
            f"{number:>8}{rate:>14,.0f}{ratios[number]:>9.2f}"
            f"{shares.get('no_free_slot', 0.0):>14.0%}{shares.get('no_credit', 0.0):>11.0%}"
        )
    print(json.dumps({"benchmark": "decoders", "ratios": ratios, "aim": {"2": 1.6}, "cores": os.cpu_count()}))


def measure(run_dir: Path, files: list[Path], decoders: int, seconds: float) -> tuple[float, dict[str, float]]:
    """(events/s, share of the time by stall reason) of one run."""
    run_dir.mkdir()
    stream = {"unit_events": UNIT_EVENTS - 10_000, "slot_mib": 16, "slots": 8, "block_files": len(files)}
    config = Config.model_validate({"input": [str(path) for path in files], "epochs": 0, "stream": stream})
    store_config(run_dir, config)
    with services(run_dir, ["fetcher", *["decoder"] * decoders]):
        transport = PeerTransport(run_dir, config.transport, writable=False, stopped=lambda: False)
        try:
            transport.send(m.Attach(0, 1, transport.plan_hash, m.Cursor()))
            transport.send(m.Want(IN_ADVANCE))
            return count(transport, seconds), read_stalls(run_dir)
        finally:
            transport.close()


def count(transport: PeerTransport, seconds: float) -> float:
    """Events per second, after the first ten units."""
    events, started_s, units = 0, 0.0, 0
    while units < WARM_UP_UNITS or time.perf_counter() - started_s < seconds:
        match transport.receive(1.0):
            case m.DeliveredUnit() as unit:
                slot = transport.arena.slot(unit.slot)
                check_header(slot, SlotHeader(transport.plan_hash, unit.k, unit.lease, unit.layout))
                transport.send(m.Release(unit.k))
                transport.send(m.Want(1))
                units += 1
                if units == WARM_UP_UNITS:
                    started_s = time.perf_counter()
                elif units > WARM_UP_UNITS:
                    events += unit.layout.events
            case None:
                continue
            case other:
                raise RuntimeError(f"unexpected: {other}")
    return events / (time.perf_counter() - started_s)


def read_stalls(run_dir: Path) -> dict[str, float]:
    status = read_status(run_dir, "fetcher", FetcherStatus)
    return {} if status is None else status.stall_shares


@contextlib.contextmanager
def services(run_dir: Path, verbs: list[str]) -> Iterator[None]:
    """Services of a run, until the end of the block."""
    started = []
    try:
        for number, verb in enumerate(verbs):
            with (run_dir / f"{number}-{verb}.log").open("wb") as log:
                command = [sys.executable, "-m", "icestream", verb, "--run-dir", str(run_dir)]
                started.append(subprocess.Popen(command, stdout=log, stderr=log))
        yield
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(30)


if __name__ == "__main__":
    main()
