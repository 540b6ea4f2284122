"""Model of many nodes on paper, with the one term that a single machine can measure.

Question: 64 nodes of 8 GPUs, 2,000,000 files: which term of a step, or of the start, breaks first?

    python -m benchmarks.bench_many_nodes [--repeats 5]

Measured: CPU time of one rank for the agreement before a step, with the messages of R ranks, as
`services/trainer/ranks/agreement.py` handles them, in one process without a network. Everything else is ASSUMED below
or MEASURED elsewhere in this project; docs/explanation/many-nodes.md names each source.
Table: for each number of nodes the terms and their share of a step. The last line is JSON.
Reading: a share above 10 % is a term that breaks.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass

from common.config import StreamConfig
from common.messages import Cursor
from services.trainer.ranks.agreement import Agreement, Share, Turn
from services.trainer.stream.position import StreamPosition
from services.trainer.stream.sharded_position import start_of
from services.trainer.stream.shares import ShardShare, shares_of_rank

GPUS = 8
NODES = (1, 4, 16, 64)


@dataclass(frozen=True)
class Assumed:
    """Figures of machines that were not available."""

    gpu_events_per_s: float = 250_000
    rank_batch_events: int = 8_192
    cache_bytes_per_s: float = 12.5e9
    """All caches of the federation together, to this site."""
    file_server_bytes_per_s: float = 1e9
    """The shared folder."""
    network_bytes_per_s: float = 25e9
    """One node's, each way."""
    message_s: float = 20e-6
    """One message between two nodes, with the software at both ends."""
    answer_s: float = 0.1
    """One answer of the federation's director or a directory's listing."""
    node_fails_every_h: float = 10_000


@dataclass(frozen=True)
class Measured:
    """Figures of this project."""

    bytes_per_event: float = 74.3
    decoder_events_per_s: float = 3_550_000
    transfer_bytes_per_core_s: float = 550e6
    inventory_s: float = 55
    files: int = 2_000_000
    parameters: int = 2 * 128_723
    updates_per_step: int = 4
    restart_s: float = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    agreement_ms = {nodes * GPUS: statistics.median(agreement_cpu_ms(nodes, repeats)) for nodes in NODES}
    rows = [terms(nodes, agreement_ms[nodes * GPUS] / 1000) for nodes in NODES]
    for name in rows[0]:
        print(f"{name:<44}", *(f"{row[name]:>10.3g}" for row in rows))
    print(json.dumps({"nodes": NODES, "agreement_ms": agreement_ms, "rows": rows}))


def terms(nodes: int, agreement_s: float) -> dict[str, float]:
    """Terms for a number of nodes; shares are of a step's time, or of a limit."""
    assumed, measured, ranks = Assumed(), Measured(), nodes * GPUS
    step_s = assumed.rank_batch_events / assumed.gpu_events_per_s
    events_per_s = ranks * assumed.gpu_events_per_s
    gradient_bytes = 4 * measured.parameters
    rounds = 2 * math.ceil(math.log2(max(2, nodes)))
    reduce_s = rounds * assumed.message_s + 2 * gradient_bytes / assumed.network_bytes_per_s
    gathered_s = (ranks - 1) * 1024 / assumed.network_bytes_per_s + rounds * assumed.message_s
    return {
        "nodes": nodes,
        "step, ms": 1000 * step_s,
        "federation: bytes needed / of all caches": events_per_s * measured.bytes_per_event / assumed.cache_bytes_per_s,
        "a node's cores: decoding": GPUS * assumed.gpu_events_per_s / measured.decoder_events_per_s,
        "a node's cores: transfers": GPUS
        * assumed.gpu_events_per_s
        * measured.bytes_per_event
        / measured.transfer_bytes_per_core_s,
        "all-reduces / step": measured.updates_per_step * reduce_s / step_s,
        "agreement, network / step": gathered_s / step_s,
        "agreement, CPU of each rank, ms": 1000 * agreement_s,
        "agreement, CPU / step": agreement_s / step_s,
        "checkpoint: write / 200 steps": 12 * measured.parameters / assumed.file_server_bytes_per_s / (200 * step_s),
        "start: listing by one node, s": measured.inventory_s,
        "start: list read by all, s": nodes * measured.files * 150 / assumed.file_server_bytes_per_s,
        "lost to failures": nodes / assumed.node_fails_every_h * (measured.restart_s + 100 * step_s + 60) / 3600,
    }


@dataclass
class OneOfMany:
    """One rank of a group; the texts of all, in ``answers``, are known before."""

    rank: int
    size: int
    answers: list[str]
    sent: str = ""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, text: str) -> list[str]:
        """Texts of all ranks."""
        self.sent = text
        return self.answers


def agreement_cpu_ms(nodes: int, repeats: int) -> list[float]:
    """CPU time of one rank for a step's agreement among those of ``nodes``, in ms: each node's share one shard."""
    ranks, stream = nodes * GPUS, StreamConfig(shards=nodes)
    position = start_of(nodes)
    moved = position.shards[0].model_copy(
        update={"cursor": Cursor(unit=1, microbatch=3), "open_unit_events": 8_192, "content": "0" * 32}
    )
    texts = []
    for rank in range(ranks):
        one = OneOfMany(rank, ranks, [Turn().model_dump_json()])  # nobody else is ready: its text is all that comes
        _agree(one, position, moved, shares_of_rank(stream, rank, ranks), steps=1)
        texts.append(one.sent)
    times = []
    for _ in range(repeats):
        steps = max(2, 2_000 // ranks)
        began_s = time.process_time()
        _agree(OneOfMany(0, ranks, texts), position, moved, shares_of_rank(stream, 0, ranks), steps)
        times.append(1000 * (time.process_time() - began_s) / steps)
    return times


def _agree(
    group: OneOfMany, position: StreamPosition, moved: StreamPosition, shares: list[ShardShare], steps: int
) -> None:
    """Agree on ``steps`` steps, each from ``position``, with ``moved`` in the rank's shards behind it."""
    agreement = Agreement(group, lambda: False)
    for _ in range(steps):
        after = position.with_shards({one.shard: moved for one in shares})
        agreement.ready(position, position, after, Share(1, 8_192, 40_000), shares)


if __name__ == "__main__":
    main()
