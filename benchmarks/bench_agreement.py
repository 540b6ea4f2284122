"""Cost of the ranks' agreement before each step.

Question: what does it cost a step that R ranks agree on it (readiness, stop, save, position)? Real processes over gloo
on loopback, no model: the turn of `services/trainer/agreement.py` alone. All share the one shard, or read the
same number of several each.

    python -m benchmarks.bench_agreement [--ranks 1,2,4,8] [--shards 1] [--steps 500] [--repeats 5]

Table, for each number of ranks: ms a step by the clock and ms of CPU time a rank, medians over the repeats with the
smallest and the largest; the numbers of ranks take turns. The last line is JSON.
Reading: with more ranks than cores the clock measures the cores' queue, too; the CPU time of a rank is what a node with
a core for each would add, beside the network's round trip.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch

from common.config import StreamConfig
from common.messages import Cursor
from services.trainer.agreement import Agreement, Share, shares_of_rank
from services.trainer.environment import RankPlace
from services.trainer.position import start_of
from services.trainer.ranks import Ranks

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4,8", help="numbers of ranks")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.ranks.split(",")]
    found: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    for _ in range(arguments.repeats):
        for size in sizes:
            found[size].append(measured(size, arguments.shards, arguments.steps))
    print(f"{'ranks':>5}  {'ms a step':>24}  {'ms of CPU a rank':>24}")
    for size, pairs in found.items():
        print(f"{size:>5}  {_spread([wall for wall, _ in pairs]):>24}  {_spread([cpu for _, cpu in pairs]):>24}")
    medians = {
        size: [statistics.median(column) for column in zip(*pairs, strict=True)] for size, pairs in found.items()
    }
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    print(json.dumps({"benchmark": "agreement", **vars(arguments), "ms": medians, **versions}))


def measured(size: int, shards: int, steps: int) -> tuple[float, float]:
    """Time of a step of ``size`` ranks, in ms: by the clock, and of CPU of the rank that takes the most."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder, spawn.Pool(size) as pool:
        places = [RankPlace(rank, size, rank, size, "", file=str(Path(folder) / "meet")) for rank in range(size)]
        times = pool.starmap(steps_of_rank, [(place, shards, steps) for place in places], chunksize=1)
    return max(wall for wall, _ in times), max(cpu for _, cpu in times)


def steps_of_rank(place: RankPlace, shards: int, steps: int) -> tuple[float, float]:
    """Time of a step on one rank, in ms: by the clock, and of CPU."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    ranks = Ranks.alone() if place.size == 1 else Ranks.join(place, CPU, timeout_s=60, stopped=_never)
    agreement = Agreement(ranks, _never)
    shares = shares_of_rank(StreamConfig(shards=shards), place.rank, place.size)
    position = start_of(StreamConfig(shards=shards))
    for step in range(1, steps // 10 + steps + 1):
        if step == steps // 10 + 1:  # the first ones connect
            began_s, began_cpu_s = time.monotonic(), time.process_time()
        moved = {
            "cursor": Cursor(unit=step // 8, microbatch=step % 8),
            "open_unit_events": 8_192,
            "content": "0" * 32,
        }
        after = position.with_shards({one.shard: position.shards[one.shard].model_copy(update=moved) for one in shares})
        made = agreement.ready(position, position, after, Share(len(shares), 8_192, 40_000), shares)
        assert made is not None
        position = made.position
    wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    ranks.close()
    return 1000 * wall_s / steps, 1000 * cpu_s / steps


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _never() -> bool:
    return False


if __name__ == "__main__":
    main()
