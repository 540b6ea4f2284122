"""Throughput of a trainer's connection over tcp, compared with the shared arena on the fetcher's machine.

Question: does a connection over tcp (loopback, so that no network limits it) keep up with the decoders and a GPU?

Command, from the repository's root:

    python -m benchmarks.bench_remote_lane [--seconds 5] [--slot-mib 8]

Table: for each connection, the rate at which a trainer receives full slots and copies each once more into its own
memory (as the CPU copier does; on CUDA the GPU copies instead), and the CPU time of both processes for a GiB. `local`:
the shared arena. `tcp`: encrypted, as a connection over tcp always is. A process in the fetcher's place sends full
slots as fast as they are wanted; nothing is decoded.

Reading: `local` is the speed of one copy. `tcp` adds the kernel's two copies, one into the ring, and CURVE, one thread
on each side: this limits a connection on any network. Divide by the bytes of an event to get events/s.
Results are in benchmarks/results/.
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

import numpy as np

from common import messages as m
from common.arena import Arena
from common.config import MIB, TransportConfig
from common.transport import Lost, PeerTransport, Received, RemotePeerTransport, ServerTransport
from common.transport.keys import make_client_keys, make_server_keys

ROOT = Path(__file__).resolve().parent.parent
SLOTS = 8
PREFETCH = 4
PLAN = "0" * 32


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytes a second of a connection: shared memory, tcp.")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--slot-mib", type=float, default=8.0)
    parser.add_argument("--serve", nargs=2, metavar=("RUN_DIR", "CONFIG"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    slot_bytes = int(arguments.slot_mib * MIB)
    if arguments.serve:
        serve(Path(arguments.serve[0]), TransportConfig.model_validate_json(arguments.serve[1]), slot_bytes)
        return
    print(f"{'kind':<8}{'units/s':>10}{'GiB/s':>8}{'CPU s/GiB':>12}")
    gib_per_s = {}
    for kind in ("local", "tcp"):
        with tempfile.TemporaryDirectory() as folder:
            units_per_s, cpu_s = measure(kind, Path(folder), slot_bytes, arguments.seconds)
        gib_per_s[kind] = round(units_per_s * slot_bytes / 2**30, 3)
        print(f"{kind:<8}{units_per_s:>10.1f}{gib_per_s[kind]:>8.2f}{cpu_s:>12.2f}", flush=True)
    print(json.dumps({"benchmark": "remote_lane", "slot_mib": arguments.slot_mib, "gib_per_s": gib_per_s}))


def measure(kind: str, folder: Path, slot_bytes: int, seconds: float) -> tuple[float, float]:
    """Units per second, and CPU seconds of both processes for each GiB."""
    config = TransportConfig(connect_timeout_s=30)
    if kind == "tcp":
        make_server_keys(folder / "keys")
        make_client_keys(folder / "keys", "trainer")
        config = config.model_copy(update={"listen": "tcp://127.0.0.1:*", "keys": folder / "keys"})
    command = [sys.executable, "-m", "benchmarks.bench_remote_lane", "--slot-mib", str(slot_bytes / MIB), "--serve"]
    arguments = [str(folder), config.model_dump_json()]
    with subprocess.Popen([*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True) as fetcher:
        assert fetcher.stdout is not None
        peer = connect(kind, folder, config, fetcher.stdout.readline().strip(), slot_bytes)
        before_s = cpu_seconds()
        units, wall_s = take(peer, slot_bytes, seconds)
        cpu_s = cpu_seconds() - before_s
        peer.close()
        cpu_s += float(fetcher.stdout.readline())
    return units / wall_s, cpu_s / (units * slot_bytes / 2**30)


def connect(
    kind: str, folder: Path, config: TransportConfig, address: str, slot_bytes: int
) -> PeerTransport | RemotePeerTransport:
    """Trainer's end of a connection."""
    if kind == "local":
        return PeerTransport(folder, config, writable=False, stopped=lambda: False)
    keys = None if config.keys is None else config.keys / "for-trainer"
    return RemotePeerTransport(
        config.model_copy(update={"connect": address, "keys": keys}),
        lambda layout: layout.particles,
        slots=PREFETCH + 1,
        slot_bytes=slot_bytes,
        stopped=lambda: False,
    )


def take(peer: PeerTransport | RemotePeerTransport, slot_bytes: int, seconds: float) -> tuple[int, float]:
    """Take units for ``seconds`` after a first round. Returns their number and the time in seconds."""
    copy = np.empty(slot_bytes, np.uint8)
    peer.send(m.Want(PREFETCH))
    units, started_s = -SLOTS, time.perf_counter()
    while units < 0 or time.perf_counter() - started_s < seconds:
        unit = peer.receive(1.0)
        if isinstance(unit, m.DeliveredUnit):
            copy[:] = peer.arena.slot(unit.slot)
            peer.send(m.Release(unit.k))
            peer.send(m.Want(1))
            units += 1
            if units == 0:
                started_s = time.perf_counter()
    return units, time.perf_counter() - started_s


def serve(run_dir: Path, config: TransportConfig, slot_bytes: int) -> None:
    """Grant full slots in the fetcher's place until the trainer has left; then print the CPU time."""
    with Arena.create(SLOTS, slot_bytes) as arena:
        arena.whole()[:] = np.random.default_rng(1).integers(0, 256, arena.size_bytes, np.uint8)
        server = ServerTransport(run_dir, config, arena, PLAN)
        print(server.listen(lambda layout: layout.particles), flush=True)
        k, before_s, served = 0, cpu_seconds(), True
        while served:
            for event in server.poll(1.0):
                match event:
                    case Received(peer, m.Want(units)):
                        for _ in range(units):
                            layout = m.Layout(1, slot_bytes, 1)
                            server.send(peer, m.DeliveredUnit(k, 0, 0, 0, k % SLOTS, 0, layout, m.Tally(), ()))
                            k += 1
                    case Lost():
                        served = False
        print(cpu_seconds() - before_s, flush=True)
        server.close()


def cpu_seconds() -> float:
    """CPU time of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
