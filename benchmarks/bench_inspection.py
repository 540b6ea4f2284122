"""Cost of inspecting a file in another process, with the checks of its pages.

    python benchmarks/bench_inspection.py          # prints a line for each kind of file and a last JSON line

Small files of 1,000 events, alternately here and in the process of services/fetcher/inspection.py (under the
same load of the machine); then one row group of --rows events, which must be counted. Results: results/inspection.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import hostile_files  # noqa: E402
import numpy as np  # noqa: E402
from muon_files import make_events, write_events  # noqa: E402

from common.config import SourceConfig, StreamConfig  # noqa: E402
from common.files.by_content import read_footer  # noqa: E402
from common.plan import SlotCapacity  # noqa: E402
from services.fetcher.inspection import Inspection  # noqa: E402
from workloads.muons.columns import MUONS  # noqa: E402

_TURNS = 30
_FILES = 20


def _ms(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    rows = parser.parse_args().rows
    folder = Path(tempfile.mkdtemp())
    stream = StreamConfig()
    capacity = SlotCapacity(MUONS, stream)
    inspection = Inspection("muons", SourceConfig(), stream)
    path = write_events(folder / "small.parquet", make_events([1, 2, 3, 4, 5] * 200))
    start_ms = _ms(lambda: inspection(path))

    def here() -> None:
        for _ in range(_FILES):
            read_footer(path, MUONS, stream, capacity)

    def there() -> None:
        for _ in range(_FILES):
            inspection(path)

    here()
    turns = [(_ms(here) / _FILES, _ms(there) / _FILES) for _ in range(_TURNS)]
    here_ms, there_ms = (statistics.median(turn[i] for turn in turns) for i in (0, 1))
    ratio = statistics.median(b / a for a, b in turns)
    found = {"start_ms": start_ms, "here_ms": here_ms, "there_ms": there_ms, "ratio": ratio}
    print(f"first file {start_ms:.0f} ms; then {here_ms:.2f} ms here, {there_ms:.2f} ms there, ratio {ratio:.2f}")
    if rows:
        counts = np.random.default_rng(0).geometric(0.125, rows)
        counts[:: rows // 10 + 1] = 178_000
        large = hostile_files._write(folder / "large.parquet", hostile_files.muons_of(counts, 1.0), row_group_size=rows)
        found["large_s"] = _ms(lambda: inspection(large)) / 1000
        (process,) = inspection._all
        lines = Path(f"/proc/{process._process.pid}/status").read_text().splitlines()
        found["peak_mib"] = next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:"))
        print(f"{rows} rows, {counts.sum()} particles: {found['large_s']:.1f} s, peak {found['peak_mib']} MiB")
    inspection.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
