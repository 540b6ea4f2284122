"""Throughput of the dispatcher, and its latency while the fetcher transfers files.

Question: are at least 5,000 empty units a second leased, filled, delivered and released, with 10,000 of them planned?
Is the p99 of a grant below 5 ms while a transfer saturates another thread of the dispatcher's process?

Command, from the repository's root:

    python -m benchmarks.bench_dispatcher [--units 10000] [--repeats 5]

Table, first part: units/s, median over the repeats, fastest and slowest beside it. 4 decoders with credit 4, 16 slots,
and one trainer, or several that share the stream, each asking for 2 units in advance; every unit goes to each of them.

    pure      the dispatcher alone: messages are passed to it, its actions are executed at once
    sockets   the real ServerTransport and PeerTransports; decoders and trainer are a process each, which send Decoding
              and Done, Release and Want, and do nothing else

Second part: time at the peer from sending to receiving, through the real sockets, p50 and p99.

    Want      a trainer asks for one unit while some are ready, and gets it
    Hello     a decoder joins while one unit can be leased, and gets it

Each with the dispatcher's process idle, and while one of its threads runs the fetcher's own transfer of files by HTTP
over the loopback, one after the other, from a server in a separate process; MB/s is the rate of the transfer.

Reading: a unit costs six messages: Lease, Decoding, Done, and DeliveredUnit, Release, Want for each trainer. Through
the sockets each is packed, sent, received, unpacked and checked: this, not the dispatcher, is the limit. Real units
take a decoder 10 to 100 ms, so that thousands a second mean hundreds of decoders. While the transfer runs, its thread
holds the interpreter's lock for each chunk's bookkeeping; a grant waits for the lock, or for a core. With fewer cores
than busy processes the scheduler determines the figures. Results are in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import http.server
import json
import logging
import multiprocessing as mp
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from common import messages as m
from common.config import MIB, TransportConfig
from common.files.remotes import fetch
from common.plan import SourceFile
from common.transport import Arena, Lost, PeerTransport, Received, ServerTransport
from services.fetcher.dispatcher import Action, Dispatcher, EndRun, Replan, Send

PLAN_HASH = "ab" * 16
SLOTS = 16
DECODERS = 4
CREDIT = 4
IN_ADVANCE = 2
PATIENCE_S = 120.0
EMPTY = m.Layout(events=0, particles=0, microbatches=0)
FILE_BYTES = 64 * MIB
PAUSE_S = 0.002
AIM_UNITS_PER_S = 5_000
AIM_P99_MS = 5.0

FORK = mp.get_context("fork")


def make_dispatcher() -> Dispatcher:
    """Dispatcher without a plan, as at the start of a fetcher."""
    return Dispatcher(slots=SLOTS, plan_hash=PLAN_HASH, max_unit_deaths=3, stall_timeout_s=PATIENCE_S)


def plan_all(dispatcher: Dispatcher, num_units: int) -> list[Action]:
    """Plan empty units of one part each, all in one block."""
    part = m.Part(0, "/data/muons/0000000-0000999/000123.parquet", 0, 0, 0, 0, 0)
    units = [m.Unit(k, 0, 0, 0, (part,)) for k in range(num_units)]
    return [*dispatcher.add_units(units), *dispatcher.end_plan()]


def attach(rank: int = 0, trainers: int = 1) -> m.Attach:
    """Message of one of the trainers, which attaches at the first unit."""
    return m.Attach(rank, trainers, PLAN_HASH, m.Cursor())


def done(lease: m.Lease) -> m.Done:
    """Message of a decoder that has finished the unit."""
    return m.Done(lease.unit.k, lease.lease, EMPTY, m.Tally())


# ------------------------------------------------------------------ the dispatcher alone


def pure_units_per_s(num_units: int, trainers: int) -> float:
    """Units per second of the dispatcher alone: each action is executed at once, in order."""
    dispatcher = make_dispatcher()
    actions: deque[Action] = deque()
    for number in range(DECODERS):
        actions += dispatcher.handle(f"decoder {number}", m.Hello(CREDIT))
    for rank in range(trainers):
        dispatcher.handle(f"trainer {rank}", attach(rank, trainers))
    actions += plan_all(dispatcher, num_units)
    delivered = 0
    started_s = time.perf_counter()
    for rank in range(trainers):
        actions += dispatcher.handle(f"trainer {rank}", m.Want(IN_ADVANCE))
    while actions:
        match actions.popleft():
            case Send(peer, m.Lease() as lease):
                actions += dispatcher.handle(peer, m.Decoding(lease.unit.k, lease.lease))
                actions += dispatcher.handle(peer, done(lease))
            case Send(peer, m.DeliveredUnit(k=k)):
                delivered += 1
                actions += dispatcher.handle(peer, m.Release(k))
                actions += dispatcher.handle(peer, m.Want(1))
    seconds = time.perf_counter() - started_s
    assert delivered == num_units * trainers
    return num_units / seconds


# ------------------------------------------------------------------ through sockets


def serve(run_dir: Path, num_units: int) -> float:
    """Run the loop of the fetcher's service with a fixed plan. Returns the seconds from the first Want to the end."""
    dispatcher = make_dispatcher()
    wanted_s = 0.0
    deadline_s = time.monotonic() + PATIENCE_S
    with Arena.create(SLOTS, 4096) as arena:
        transport = ServerTransport(run_dir, TransportConfig(), arena, PLAN_HASH)
        try:
            seconds = 0.0
            while not seconds or dispatcher.decoders:
                assert time.monotonic() < deadline_s, "a process hangs"
                for event in transport.poll(0.2):
                    actions: list[Action] = []
                    match event:
                        case Received(peer, message):
                            if isinstance(message, m.Want):
                                wanted_s = wanted_s or time.perf_counter()
                            actions = dispatcher.handle(peer, message)
                        case Lost(peer):
                            actions = dispatcher.lose(peer)
                    for action in actions:
                        match action:
                            case Send(peer, message):
                                transport.send(peer, message)
                            case Replan():
                                for send in plan_all(dispatcher, num_units):
                                    assert isinstance(send, Send)
                                    transport.send(send.peer, send.message)
                            case EndRun():
                                seconds = time.perf_counter() - wanted_s
                                for peer in list(dispatcher.decoders.by_name):
                                    transport.send(peer, m.Stop())
                dispatcher.tick(time.monotonic())
            return seconds
        finally:
            transport.close()


def connect(run_dir: Path) -> PeerTransport:
    """Connection of a decoder or trainer."""
    return PeerTransport(run_dir, TransportConfig(), writable=False, stopped=lambda: False)


def decode(run_dir: Path) -> None:
    """Decoder of empty units."""
    transport = connect(run_dir)
    transport.send(m.Hello(CREDIT))
    while isinstance(lease := transport.receive(PATIENCE_S), m.Lease):
        transport.send(m.Decoding(lease.unit.k, lease.lease))
        transport.send(done(lease))
    assert isinstance(lease, m.Stop)
    transport.send(m.Bye())
    transport.close()


def train(run_dir: Path, num_units: int, rank: int = 0, trainers: int = 1) -> None:
    """Trainer that releases each unit at once."""
    transport = connect(run_dir)
    transport.send(attach(rank, trainers))
    transport.send(m.Want(IN_ADVANCE))
    for _ in range(num_units):
        unit = _receive_unit(transport)
        transport.send(m.Release(unit.k))
        transport.send(m.Want(1))
    transport.send(m.Finished())
    transport.close()


def _receive_unit(transport: PeerTransport) -> m.DeliveredUnit:
    while isinstance(message := transport.receive(PATIENCE_S), m.End):
        pass  # the last unit has already arrived
    assert isinstance(message, m.DeliveredUnit)
    return message


def socket_units_per_s(num_units: int, trainers: int) -> float:
    """Units per second through sockets, with the dispatcher in this process."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        peers = [FORK.Process(target=decode, args=(run_dir,)) for _ in range(DECODERS)]
        peers += [FORK.Process(target=train, args=(run_dir, num_units, rank, trainers)) for rank in range(trainers)]
        return num_units / _serve_to(peers, lambda: serve(run_dir, num_units))


def _serve_to(peers: Sequence[mp.process.BaseProcess], serve_them: Callable[[], float]) -> float:
    for peer in peers:
        peer.start()
    seconds = serve_them()
    for peer in peers:
        peer.join(PATIENCE_S)
        assert peer.exitcode == 0, "a peer failed"
    return seconds


# ------------------------------------------------------------------ latency of a grant


def probe_want(run_dir: Path, num_units: int, answer: Connection) -> None:
    """Trainer that asks for one unit at a time, and leaves the decoders time to fill the next ones."""
    transport = connect(run_dir)
    transport.send(attach())
    seconds = []
    for _ in range(num_units):
        time.sleep(PAUSE_S)
        asked_s = time.perf_counter()
        transport.send(m.Want(1))
        unit = _receive_unit(transport)
        seconds.append(time.perf_counter() - asked_s)
        transport.send(m.Release(unit.k))
    transport.send(m.Finished())
    answer.send(seconds[SLOTS:])  # the first had to be decoded
    transport.close()


def probe_hello(run_dir: Path, num_units: int, answer: Connection) -> None:
    """Decoder that joins again for each unit; the units are wanted, and slots are free."""
    transport = connect(run_dir)
    seconds = []
    for _ in range(num_units):
        time.sleep(PAUSE_S)
        joined_s = time.perf_counter()
        transport.send(m.Hello(1))
        lease = transport.receive(PATIENCE_S)
        seconds.append(time.perf_counter() - joined_s)
        assert isinstance(lease, m.Lease)
        transport.send(done(lease))
        if lease.unit.k < num_units - 1:  # it gets the next one at once, and returns it
            assert isinstance(transport.receive(PATIENCE_S), m.Lease)
        transport.send(m.Bye())
    answer.send(seconds[1:])
    transport.close()


class Transfer:
    """Files transferred by HTTP in a thread of this process, one after the other."""

    def __init__(self, folder: Path) -> None:
        ports, port = FORK.Pipe(duplex=False)
        self._server = FORK.Process(target=_serve_files, args=(port,), daemon=True)
        self._server.start()
        self._source = SourceFile(f"http://127.0.0.1:{ports.recv()}/file", FILE_BYTES)
        self._path = folder / "staged"
        self._stopped = False
        self.num_bytes = 0
        self._thread = threading.Thread(target=self._run)
        self._started_s = time.perf_counter()
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            fetch(self._source, self._path)
            self.num_bytes += FILE_BYTES
            self._path.unlink()

    def stop(self) -> float:
        """Stop the transfer. Returns its mean MB/s."""
        self._stopped = True
        self._thread.join()
        assert self.num_bytes, "no file was transferred"
        self._server.terminate()
        self._server.join()
        return self.num_bytes / (time.perf_counter() - self._started_s) / 1e6


class _Ranges(http.server.BaseHTTPRequestHandler):
    """Server of one file of zeros, with ranges as the federation's caches support them."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """Send the size."""
        self._head(200, FILE_BYTES)

    def do_GET(self) -> None:
        """Send the file, or the requested range of it."""
        if "Range" not in self.headers:
            self._head(200, FILE_BYTES)
            self.wfile.write(bytes(FILE_BYTES))
            return
        first, last = (int(number) for number in self.headers["Range"].removeprefix("bytes=").split("-"))
        last = min(last, FILE_BYTES - 1)
        self._head(206, last - first + 1, ("Content-Range", f"bytes {first}-{last}/{FILE_BYTES}"))
        self.wfile.write(bytes(last - first + 1))

    def _head(self, status: int, length: int, *more: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Accept-Ranges", "bytes"), ("Content-Length", str(length)), *more):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def _serve_files(port: Connection) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Ranges)
    port.send(server.server_port)
    server.serve_forever()


def grant_ms(kind: str, num_grants: int, *, busy: bool) -> tuple[list[float], float]:
    """Times of all grants in ms, and MB/s of the concurrent transfer."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        answers, answer = FORK.Pipe(duplex=False)
        if kind == "Want":
            others = FORK.Process(target=decode, args=(run_dir,))
            probe = FORK.Process(target=probe_want, args=(run_dir, num_grants, answer))
        else:
            others = FORK.Process(target=train, args=(run_dir, num_grants))
            probe = FORK.Process(target=probe_hello, args=(run_dir, num_grants, answer))
        for process in (others, probe):  # before any thread starts: they are forked
            process.start()
        transfer = Transfer(run_dir) if busy else None
        serve(run_dir, num_grants)
        rate = transfer.stop() if transfer else 0.0
        seconds = answers.recv()
        for process in (others, probe):
            process.join(PATIENCE_S)
            assert process.exitcode == 0, "a peer failed"
        return [1e3 * s for s in seconds], rate


# ------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description="Units a second of the dispatcher, and the time until it grants one.")
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--grants", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # the service logs to a file; here it would be the terminal

    print(f"{'':<10}{'trainers':>9}{'units/s':>10}{'slowest':>10}{'fastest':>10}")
    rates: dict[str, int] = {}
    for name, measure in (("pure", pure_units_per_s), ("sockets", socket_units_per_s)):
        for trainers in (1, 4):
            found = sorted(measure(arguments.units, trainers) for _ in range(arguments.repeats))
            rates[f"{name}, {trainers} trainers"] = round(statistics.median(found))
            print(f"{name:<10}{trainers:>9}{statistics.median(found):>10,.0f}{found[0]:>10,.0f}{found[-1]:>10,.0f}")

    print(f"\n{'':<10}{'transfer':>10}{'MB/s':>8}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}")
    p99_ms: dict[str, float] = {}
    for kind in ("Want", "Hello"):
        for busy in (False, True):
            times_ms, rate = grant_ms(kind, arguments.grants, busy=busy)
            p50, p99 = (statistics.quantiles(times_ms, n=100)[n] for n in (49, 98))
            p99_ms[f"{kind}, {'busy' if busy else 'idle'}"] = round(p99, 3)
            print(f"{kind:<10}{'busy' if busy else 'idle':>10}{rate:>8,.0f}{p50:>9.3f}{p99:>9.3f}{max(times_ms):>9.3f}")
    met = {
        "pure": all(rate >= AIM_UNITS_PER_S for name, rate in rates.items() if name.startswith("pure")),
        "sockets": all(rate >= AIM_UNITS_PER_S for name, rate in rates.items() if name.startswith("sockets")),
        "p99": all(value < AIM_P99_MS for value in p99_ms.values()),
    }
    print(json.dumps({"benchmark": "dispatcher", "units_per_s": rates, "grant_p99_ms": p99_ms, "aims_met": met}))


if __name__ == "__main__":
    main()
