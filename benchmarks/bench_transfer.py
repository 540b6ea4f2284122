"""Speed of transfers from a federation, against bare aiohttp.

Question: files fetched by `PelicanThread.download` from 8 threads, as the fetcher does it (discovery, director,
sources, parts on disk, sizes checked), against aiohttp fetching the same URLs from the same data server, 8 at once,
writing to files. Asked: 60 files of 10 MB 0.9 ×, 1,000 files of 100 kB 0.6 ×.

Command, from the repository's root:

    python -m benchmarks.bench_transfer [--light] [--repeats 5]

Table: median wall time of each, the median of the ratios of the pairs (one after the other, in alternating order), and
this process's CPU. The servers (XRootD if it is installed, without its proxy; else the light ones) run in a separate
process. A first pair warms the cache and is not counted.

Reading: with two cores the servers take one of them, for both sides alike. Our additional work: one request to the
director for each directory, handing each file from a worker thread to the loop and back, and counting bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp

from benchmarks.local_federation import LocalFederation
from common.config import PelicanConfig
from common.pelican.threads import PelicanThread

AT_ONCE = 8
SETS = (("/public/large", 60, 10_000_000, 0.9), ("/public/small", 1_000, 100_000, 0.6))


def main() -> None:
    parser = argparse.ArgumentParser(description="Transfers from a federation against bare aiohttp.")
    parser.add_argument("--light", action="store_true", help="the light servers, even if XRootD is installed")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    found = {}
    with LocalFederation([one[:3] for one in SETS], light=arguments.light) as federation:
        print(f"servers: {federation.kind}")
        print(f"{'':<18}{'wall s':>19}{'':>15}{'CPU s':>19}")
        print(f"{'files':<18}{'aiohttp':>10}{'ours':>9}{'ratio':>8}{'asked':>7}{'aiohttp':>10}{'ours':>9}")
        for directory, num_files, size_bytes, asked in SETS:
            paths = [f"{directory}/{i:07d}.parquet" for i in range(num_files)]
            cases: tuple[Callable[[Path], None], ...] = (
                lambda folder: asyncio.run(bare(federation.data_server, paths, folder)),  # noqa: B023
                lambda folder: ours(federation.discovery_host, paths, size_bytes, folder),  # noqa: B023
            )
            pairs = [pair(cases, turned=bool(repeat % 2)) for repeat in range(arguments.repeats + 1)][1:]
            wall = [statistics.median(times[side][0] for times in pairs) for side in (0, 1)]
            cpu = [statistics.median(times[side][1] for times in pairs) for side in (0, 1)]
            ratio = statistics.median(times[0][0] / times[1][0] for times in pairs)
            name = f"{num_files} x {size_bytes / 1e6:g} MB"
            print(f"{name:<18}{wall[0]:>10.2f}{wall[1]:>9.2f}{ratio:>8.2f}{asked:>7}{cpu[0]:>10.2f}{cpu[1]:>9.2f}")
            found[name] = {"ratio": round(ratio, 3), "asked": asked}
        print(json.dumps({"benchmark": "transfer", "servers": federation.kind, **found}))


def pair(cases: tuple[Callable[[Path], None], ...], *, turned: bool) -> list[tuple[float, float]]:
    """(wall, CPU) seconds of each case."""
    times = [(0.0, 0.0)] * len(cases)
    for side in reversed(range(len(cases))) if turned else range(len(cases)):
        with tempfile.TemporaryDirectory() as folder:
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            cases[side](Path(folder))
            times[side] = (time.perf_counter() - wall_s, time.process_time() - cpu_s)
    return times


async def bare(server: str, paths: list[str], folder: Path) -> None:
    """Download with aiohttp alone, as one would write it."""
    waiting = iter(paths)

    async def work() -> None:
        for path in waiting:
            async with session.get(server + path) as response:
                response.raise_for_status()
                with (folder / Path(path).name).open("wb") as file:
                    async for chunk in response.content.iter_chunked(1 << 18):
                        file.write(chunk)

    connector = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context())
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))


def ours(host: str, paths: list[str], size_bytes: int, folder: Path) -> None:
    def fetch(path: str) -> None:
        thread.download(f"pelican://{host}{path}", folder / Path(path).name, size_bytes)

    thread = PelicanThread(PelicanConfig(), transfers=AT_ONCE)
    try:
        with ThreadPoolExecutor(AT_ONCE) as workers:
            list(workers.map(fetch, paths))
    finally:
        thread.close()


if __name__ == "__main__":
    main()
