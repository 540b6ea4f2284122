"""Cost of globs and of inventories of millions of files.

Question: (1) how many requests does a glob of 100 directories with 1,000 files each take? Asked: one listing a
directory, none a file. (2) An inventory of 2,000,000 files in 2,000 ranges: built from listings as received, frozen in
the ledger, the order of an epoch walked, the footer of every file stored (10 row groups each); then a fresh process
resumes and plans the block in the middle. Asked: less than 60 s of CPU in all, 1 GB of memory, 1 GB of ledger.

Command, from the repository's root:

    python -m benchmarks.bench_inventory [--ranges 2000] [--light]

Table: requests of the glob by server; then CPU seconds of each step, peak memory of each process, size of the ledger.
The bodies of the listings are XRootD's, with OSDF-like names; the time of composing them is not counted.

Reading: memory is one number a file (its size); names stay in the ledger. Expat takes 4 of the 8 to 14 µs for a file of
a listing. Footers arrive one by one as files are staged, over weeks: a commit each, which takes 8 of their 11 to 14 µs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.local_federation import LocalFederation
from common.config import PelicanConfig, StreamConfig
from common.files.local import SUFFIXES
from common.pelican.answers import Listing, ListingParser
from common.pelican.threads import PelicanThread
from common.pelican.url import PelicanUrl
from common.plan import Blocks, Footer, RowGroup, SlotCapacity, SourceFile, StagedFile, plan_block
from services.config.settings import InputRange, make_ranges
from services.fetcher.inventory import Inventory
from services.fetcher.ledger import LEDGER_FILE, Ledger
from tests.federation.listing import multistatus
from workloads.muons.columns import MUONS

FILES = 1_000
GLOB_DIRECTORIES = 100
TEMPLATE = "pelican://osg-htc.org/icecube/wipac/data/sim/IceCube/2025/generated/CORSIKA-in-ice/22853/{range}/*.parquet"
NAME = "Level2_IC86.2025_corsika.022853.{:>04}{:03d}.parquet"
FILLER = "RRRR"
STREAM = StreamConfig(slot_mib=64)
SEED = 7


def main() -> None:
    parser = argparse.ArgumentParser(description="Globs, and inventories of millions of files.")
    parser.add_argument("--ranges", type=int, default=2_000, help="of 1,000 files")
    parser.add_argument("--light", action="store_true", help="the light servers, even if XRootD is installed")
    parser.add_argument("--step", choices=("build", "resume"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        step = build if arguments.step == "build" else resume
        print(json.dumps(step(arguments.folder, arguments.ranges)))
        return
    requests = glob_requests(light=arguments.light)
    num_files = arguments.ranges * FILES
    found: dict[str, float] = {}
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("build", "resume"):
            command = [sys.executable, "-m", "benchmarks.bench_inventory", "--step", name, "--folder", folder]
            command += ["--ranges", str(arguments.ranges)]
            answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            peaks.append(answer.pop("peak_gb"))
            found |= answer
        ledger_gb = sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e9
    print(f"\n{num_files:,} files in {arguments.ranges:,} ranges\n{'step':<44}{'CPU s':>8}")
    for name, cpu_s in found.items():
        print(f"{name:<44}{cpu_s:>8.2f}")
    total_s = sum(found.values())
    print(f"{'all (asked: 60)':<44}{total_s:>8.2f}")
    print(f"peak memory {peaks[0]:.2f} GB building, {peaks[1]:.2f} GB resuming (asked: 1)")
    print(f"ledger {ledger_gb:.2f} GB (asked: 1)")
    told = {"cpu_s": round(total_s, 1), "peak_gb": max(peaks), "ledger_gb": round(ledger_gb, 3), "requests": requests}
    print(json.dumps({"benchmark": "inventory", "files": num_files, **told}))


def glob_requests(*, light: bool) -> dict[str, int]:
    """Requests by server and method."""
    sets = [(f"/public/ds/{i:07d}-{i + 999:07d}", FILES, 1_000) for i in range(0, GLOB_DIRECTORIES * 1_000, 1_000)]
    with LocalFederation(sets, light=light, counted=True) as federation:
        thread = PelicanThread(PelicanConfig())
        federation.requests()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        files = thread.expand(f"pelican://{federation.discovery_host}/public/ds/*/*.parquet", (".parquet",))
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        thread.close()
        requests = federation.requests()
        assert len(files) == GLOB_DIRECTORIES * FILES
        assert {size_bytes for _, size_bytes in files} == {1_000}
        print(f"glob of {GLOB_DIRECTORIES} directories with {FILES:,} files each ({federation.kind}):")
        print(f"  {wall_s:.2f} s, {cpu_s:.2f} s of CPU")
        for what, number in sorted(requests.items()):
            print(f"  {what:<24}{number:>6}")
    return requests


class Canned:
    """Substitute for common.pelican.client.Federation, with listings as of an XRootD origin."""

    host = PelicanUrl.parse(TEMPLATE).federation
    config = PelicanConfig()

    def __init__(self) -> None:
        self.filling_s = 0.0
        """CPU seconds of composing the bodies."""
        with tempfile.TemporaryDirectory() as folder:
            for i in range(FILES):
                with (Path(folder) / NAME.format(FILLER, i)).open("wb") as file:
                    file.truncate(10_000_000 + 977 * i)
            self._body = multistatus("DIRECTORY", Path(folder), "1").encode()

    async def list_directory(self, path: str) -> Listing:
        started_s = time.process_time()
        number = path.rpartition("/")[2][:4]
        body = self._body.replace(b"DIRECTORY", path.encode()).replace(FILLER.encode(), number.encode())
        self.filling_s += time.process_time() - started_s
        parser = ListingParser()
        parser.feed(body)
        return parser.listing(path, raw_names=True)


def all_ranges(num_ranges: int) -> list[InputRange]:
    return make_ranges([TEMPLATE], f"0:{(num_ranges - 1) * FILES}:{FILES}")


def build(folder: Path, num_ranges: int) -> dict[str, float]:
    """CPU seconds of each step."""
    federation = Canned()
    thread = PelicanThread(federation.config)
    thread._federations[federation.host] = federation  # type: ignore[assignment]
    started_s = time.process_time()
    ledger = Ledger(folder / LEDGER_FILE, "settings")
    ranges = all_ranges(num_ranges)
    blocks = Blocks.of_ranges(num_ranges, STREAM, SEED, 0)
    inventory = Inventory(ledger, ranges, blocks)
    found = {"start": time.process_time() - started_s, "list": 0.0, "freeze": 0.0}
    for one in ranges:
        then_s = [time.process_time()]
        federation.filling_s = 0.0
        files = [SourceFile(name, size_bytes) for name, size_bytes in thread.expand(one.inputs[0], SUFFIXES)]
        then_s.append(time.process_time())
        inventory.freeze(files)
        found["list"] += then_s[1] - then_s[0] - federation.filling_s
        found["freeze"] += time.process_time() - then_s[1]
    started_s = time.process_time()
    num_walked = sum(len(blocks.files(block)) for block in range(blocks.per_epoch))
    assert num_walked == num_ranges * FILES
    found["walk the order of an epoch"] = time.process_time() - started_s
    started_s = time.process_time()
    footer = Footer(tuple(RowGroup(10_000 + i, 46_000 + 13 * i) for i in range(10)))
    for file in range(inventory.num_files):
        ledger.keep_footer(file, footer)
    found["keep every footer"] = time.process_time() - started_s
    ledger.close()
    thread.close()
    return {**found, "peak_gb": peak_gb()}


def resume(folder: Path, num_ranges: int) -> dict[str, float]:
    """CPU seconds of each step in a process that resumes from the ledger."""
    started_s = time.process_time()
    ledger = Ledger(folder / LEDGER_FILE, "settings")
    blocks = Blocks.of_ranges(num_ranges, STREAM, SEED, 0)
    inventory = Inventory(ledger, all_ranges(num_ranges), blocks)
    assert inventory.num_files == num_ranges * FILES
    block = blocks.per_epoch // 2
    staged = [
        StagedFile(file, "/cache", ledger.footer(file), inventory.source(file).url) for file in blocks.files(block)
    ]
    source = inventory.source_of(block)
    capacity = SlotCapacity(MUONS, STREAM)
    units = plan_block(block, 0, 0, staged, capacity=capacity, stream=STREAM, seed=SEED, source=source)
    assert sum(part.rows for unit in units for part in unit.parts) == len(staged) * sum(range(10_000, 10_010))
    ledger.close()
    return {"resume, plan the block in the middle": time.process_time() - started_s, "peak_gb": peak_gb()}


def peak_gb() -> float:
    """Peak memory of this process, in GB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 3)


if __name__ == "__main__":
    main()
