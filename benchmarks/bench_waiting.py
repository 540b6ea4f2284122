"""Share of the time that decoders wait for files from a network twice as fast as the training.

Question: a run from a local federation with `pelican.bandwidth_mib_s` at twice the rate that the same run trained
without a limit: in which share of the time could nothing be leased because no file was staged? Asked: less than 1 %.

    python -m benchmarks.bench_waiting [--events 200000] [--light]

Table: seconds and bytes of both runs; the share of `not_staged` before the first step (the first block has to arrive at
that speed) and from then to the end.
Reading: the share after the first step is the answer. The time before is that of one block, once a run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common.status import FetcherStatus, TrainerStatus
from common.status_files import read_status
from tests.federation.federation import Federation
from tests.federation.xrootd import available
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset

FILES = 60
FOLDER = "/public/waiting"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--light", action="store_true")
    arguments = parser.parse_args()
    kind = "xrootd" if available() and not arguments.light else "light"
    with (
        tempfile.TemporaryDirectory(prefix="federation-") as folder,
        Federation(Path(folder), caches=2, kind=kind) as federation,  # type: ignore[arg-type]
    ):
        made = Path(folder) / "made"
        write_dataset(made, preset("bench"), DatasetPlan(arguments.events, FILES, seed=1))
        num_bytes = 0
        for file in sorted(made.rglob("*.parquet")):
            federation.put(f"{FOLDER}/{file.name}", file.read_bytes())
            num_bytes += file.stat().st_size
        free = run(federation, Path(folder) / "free", 0.0)
        mib_s = 2 * num_bytes / 2**20 / free["seconds"]
        limited = run(federation, Path(folder) / "limited", mib_s)
    print(f"servers: {kind}; {num_bytes / 2**20:.1f} MiB in {FILES} files")
    print(f"{'run':<28}{'seconds':>9}{'not staged before':>19}{'after the first step':>22}")
    for name, found in (("without a limit", free), (f"limit {mib_s:.2f} MiB/s", limited)):
        before, after = f"{found['before_s']:.2f} s", f"{100 * found['after']:.2f} %"
        print(f"{name:<28}{found['seconds']:>9.1f}{before:>19}{after:>22}")
    print(json.dumps({"benchmark": "waiting", "share": limited["after"], "mib_s": mib_s, "servers": kind}))


def run(federation: Federation, run_dir: Path, mib_s: float) -> dict[str, float]:
    """Seconds of training; seconds and share of the time in which no file was staged."""
    command = [sys.executable, "-m", "icestream", "run", "-i", federation.url(f"{FOLDER}/*.parquet")]
    command += ["--run-dir", str(run_dir), "-c", "configs/demo.toml", "--set", "stream.block_files=2"]
    command += ["--set", f"pelican.bandwidth_mib_s={mib_s}"]
    environment = {**os.environ, **federation.environment()}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        began_s, before_s = 0.0, 0.0
        last = FetcherStatus()
        while process.poll() is None:
            time.sleep(0.1)
            trainer = read_status(run_dir, "trainer", TrainerStatus)
            last = read_status(run_dir, "fetcher", FetcherStatus) or last
            if not began_s and trainer is not None and trainer.step:
                began_s, before_s = time.monotonic(), last.stalled_s.get("not_staged", 0.0)
        ended_s = time.monotonic()
    if process.returncode:
        raise SystemExit(f"the run ended with {process.returncode}")
    summary = json.loads((run_dir / "summary.json").read_text())
    waited_s = last.stalled_s.get("not_staged", 0.0) - before_s
    return {"seconds": summary["seconds_total"], "before_s": before_s, "after": waited_s / (ended_s - began_s)}


if __name__ == "__main__":
    main()
