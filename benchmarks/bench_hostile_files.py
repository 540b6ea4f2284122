"""Memory that a small hostile file takes in the fetcher and in a decoder.

    python benchmarks/bench_hostile_files.py [--size 24000000]        # prints a table and a last JSON line

For each trick of tests/hostile_files.py, a fresh process inspects the file as a fetcher does (with its child);
another decodes its first 20 units as a decoder does (the first row group of a refused file, as if it had passed). The
memory is the peak resident set above that of the same process with a good file. Files are written once into --folder.
--tree measures another checkout, for comparison. Reading: no number is above the limit that follows from the settings
(common/plan.py), and each file is refused or costs little.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_UNITS = 20


def inspect(path: Path) -> str:
    """Result of a fetcher's inspection; its child process, if any, has ended on return."""
    from common.config import SourceConfig, StreamConfig
    from common.files.local import BadFileError
    from common.plan import SlotCapacity
    from workloads.muons.columns import MUONS

    stream = StreamConfig()
    try:
        from services.fetcher.inspection import Inspection
    except ImportError:
        from common.files.by_content import read_footer

        try:
            return _shown(read_footer(path, MUONS, stream, SlotCapacity(MUONS, stream)))
        except BadFileError as error:
            return str(error)
    inspection = Inspection("muons", SourceConfig(), stream)
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(inspection, done))
    watcher.start()
    try:
        return _shown(inspection(path))
    except BadFileError as error:
        return str(error)
    finally:
        done.set()
        watcher.join()
        inspection.close()


def _watch(inspection: Any, done: threading.Event) -> None:
    """Sample the peaks of the inspecting processes: a process that ends loses its own."""
    last = False
    while not last:
        last = done.wait(0.005)
        for process in list(inspection._all):
            with contextlib.suppress(OSError, StopIteration):
                pid = process._process.pid
                _CHILDREN[pid] = max(_CHILDREN.get(pid, 0.0), _peak_mib(pid))


_CHILDREN: dict[int, float] = {}


def _peak_mib(pid: int | str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def _shown(footer: object) -> str:
    return f"accepted: {footer}"


def decode(path: Path) -> str:
    """Result of decoding the file's first row group."""
    import numpy as np

    from common.config import StreamConfig
    from common.files.by_content import ContentReader, read_footer
    from common.files.local import BadFileError
    from common.messages import Part, Unit
    from common.plan import SlotCapacity, StagedFile, plan_block
    from services.decoder.decode import Decode
    from workloads.muons.columns import MUONS

    stream = StreamConfig()
    try:
        from common.memory import limit_memory
        from common.plan import working_bytes

        limit_memory(working_bytes(stream))
    except ImportError:
        pass
    try:
        capacity = SlotCapacity(MUONS, stream)
        staged = [StagedFile(0, str(path), read_footer(path, MUONS, stream, capacity))]
        units = plan_block(0, 0, 0, staged, capacity=capacity, stream=stream, seed=0)[:_UNITS]
    except BadFileError:  # as if the fetcher had accepted it
        units = [Unit(0, 0, 0, 0, (Part(0, str(path), 0, 0, _rows(path), 600_000, 0),))]
    with tempfile.TemporaryDirectory() as folder:
        slot = np.zeros(stream.slot_bytes, np.uint8)
        decode = Decode(MUONS, stream, 0, Path(folder), ContentReader(MUONS))
        told = [bad.reason for unit in units for bad in decode(unit, slot)[1].bad]
    return "; ".join(told) or "decoded"


def _rows(path: Path) -> int:
    from common.files.local import file_kind

    if file_kind(path) == "HDF5":
        return 16_384
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).row_group(0).num_rows)


def one(service: str, path: Path) -> None:
    """Print peak memory in MiB and the result; run in a separate process."""
    try:
        said = inspect(path) if service == "fetcher" else decode(path)
    except Exception as error:  # noqa: BLE001  the table shows it
        said = f"{type(error).__name__}: {error}"
    peak_mib = max([_peak_mib("self"), *_CHILDREN.values()])
    print(json.dumps({"peak_mib": peak_mib, "said": said.replace(str(path.parent), "")[:110]}))


def measured(tree: Path, service: str, path: Path) -> dict[str, Any]:
    """Result of ``one`` in a separate process."""
    command = [sys.executable, __file__, "--one", service, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(tree), "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        return {"peak_mib": 0.0, "said": f"the process ended with {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Write the files, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=2)
    parser.add_argument("--size", type=int, default=24_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--tree", type=Path, default=ROOT)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.one[0], Path(arguments.one[1]))
        return
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    import hostile_files

    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="hostile"))
    good = folder / "good"
    hostile_files._write(good, hostile_files._one_row(3000))
    base = {service: measured(arguments.tree, service, good)["peak_mib"] for service in ("fetcher", "decoder")}
    rows = []
    print(f"good file: {base}\n| kind | trick | file, kB | fetcher, MiB | says | decoder, MiB | says |")
    print("| --- | --- | ---: | ---: | --- | ---: | --- |")
    for kind, tricks in (("Parquet", hostile_files.PARQUET), ("HDF5", hostile_files.HDF5)):
        for trick, make in tricks.items():
            path = folder / f"{kind}-{trick.replace(' ', '-')}"
            if not path.exists():
                make(path, arguments.size)
            row: dict[str, Any] = {"kind": kind, "trick": trick, "file_kb": path.stat().st_size / 1000}
            for service in ("fetcher", "decoder"):
                found = measured(arguments.tree, service, path)
                above = round(found["peak_mib"] - base[service]) if found["peak_mib"] else None
                row |= {f"{service}_mib": above, f"{service}_says": found["said"]}
            rows.append(row)
            print(
                f"| {kind} | {trick} | {row['file_kb']:.0f} | {row['fetcher_mib']} | {row['fetcher_says']} | "
                f"{row['decoder_mib']} | {row['decoder_says']} |",
                flush=True,
            )
    print(json.dumps({"size": arguments.size, "rows": rows}))


if __name__ == "__main__":
    main()
