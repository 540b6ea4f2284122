"""Speed and CPU time of the hand-over of finished units from a decoder to the trainer.

Question: is the hand-over through the arena at least 2 times as fast as ZeroMQ with copy=False and no shared memory,
and at least 12 times as fast as multiprocessing.Queue, for units of 8 MiB?

Command, from the repository's root:

    python -m benchmarks.bench_handover [--gib 2] [--repeats 5]

Table: one producer process, one consumer process that sums every byte of every unit; eight distinct units without a
zero byte in a row, the same for all. The sums are compared with the producer's. Each repeat runs all methods one after
the other; medians over the repeats, fastest and slowest beside them. Time is measured from the first unit after the
warm-up (16 units) to the last. CPU seconds, from the processes' own clocks for the same interval, are those of
producer + consumer, and for the arena also of the dispatcher, which the others don't have.

    arena, in place   the real Arena, ServerTransport, Dispatcher and PeerTransports: the producer takes leases and
                      sends Done; its unit is in the slot already, since a decoder decodes into its slot. The consumer
                      checks the header, sums the arrays, and releases
    arena, one copy   the same, but the producer copies each unit into the slot first
    ZeroMQ            PUSH and PULL over a unix socket, copy=False on both sides, at most 8 units under way
    Queue             multiprocessing.Queue of 8: numpy arrays, pickled

Reading: the methods differ in the number of copies of each byte. In place: none, so that only the consumer's reading
and six small messages a unit remain. One copy: one. ZeroMQ: into the kernel and out of it. Queue: the same, and
pickling and joining of chunks on both sides. The arena's three processes have six active threads (ZeroMQ has one in
each): with two cores, or other load, they compete with the consumer for its core, and the ratio to ZeroMQ falls.
Absolute figures depend on the machine; compare ratios. Results are in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing as mp
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zmq

from common import messages as m
from common.config import MIB, TransportConfig
from common.transport import Arena, Lost, PeerTransport, Received, ServerTransport
from common.unit_arrays import SlotHeader, check_header, slot_bytes_needed, unit_arrays, write_header
from services.fetcher.dispatcher import Action, Dispatcher, EndRun, Send
from workloads.muons.columns import MUONS

SLOT_BYTES = 8 * MIB
SLOTS = 8
WARM_UP = 2 * SLOTS
CREDIT = 2
PLAN_HASH = "ab" * 16
PATIENCE_S = 120.0
LAYOUT = m.Layout(events=16_384, particles=627_800, microbatches=64)  # fills a slot except a few kB
AIMS = {"ZeroMQ": 2.0, "Queue": 12.0}

Bytes = npt.NDArray[np.uint8]
FORK = mp.get_context("fork")


@dataclass(frozen=True)
class Measured:
    """One run of one method."""

    seconds: float
    cpu_s: tuple[float, ...]
    """CPU seconds of producer, consumer and, for the arena, dispatcher."""


class Meter:
    """Time after the warm-up and sums of the bytes, in the consumer. ``pids``: processes with counted CPU time."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._units = 0
        self._sum = 0

    def read(self, payload: Bytes) -> None:
        """Sum every byte of a unit."""
        self._sum += int(payload.view(np.uint64).sum())
        self._units += 1
        if self._units == WARM_UP:
            self._cpu_s = [_cpu_s(pid) for pid in self._pids]
            self._started_s = time.perf_counter()

    def result(self, expected_sum: int) -> Measured:
        """Result after the last unit. Raises AssertionError if other bytes arrived than were sent."""
        seconds = time.perf_counter() - self._started_s
        cpu_s = tuple(_cpu_s(pid) - before for pid, before in zip(self._pids, self._cpu_s, strict=True))
        assert self._sum == expected_sum, "other bytes arrived than were sent"
        return Measured(seconds, cpu_s)


def _cpu_s(pid: int) -> float:
    """CPU time of all threads of a process, by its clock as in clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


def payload_of(slot: Bytes) -> Bytes:
    """Bytes of the unit's arrays in a slot, without the header."""
    first = unit_arrays(slot, MUONS, LAYOUT).offsets.ctypes.data - slot.ctypes.data
    return slot[first : slot_bytes_needed(MUONS, LAYOUT)]


def make_payloads() -> list[Bytes]:
    """Distinct units without zeros."""
    rng = np.random.default_rng(0)
    size = len(payload_of(np.zeros(SLOT_BYTES, np.uint8)))
    return [rng.integers(1, 2**63, size // 8, np.uint64).view(np.uint8) for _ in range(SLOTS)]


# ------------------------------------------------------------------ the arena


def arena_producer(run_dir: Path, payloads: list[Bytes], *, in_place: bool) -> None:
    """Decoder without the decoding."""
    transport = PeerTransport(run_dir, TransportConfig(), writable=True, stopped=lambda: False)
    filled: set[int] = set()
    transport.send(m.Hello(CREDIT))
    while not isinstance(message := transport.receive(PATIENCE_S), m.Stop):
        assert isinstance(message, m.Lease)
        k = message.unit.k
        transport.send(m.Decoding(k, message.lease))
        slot = transport.arena.slot(message.slot)
        if not in_place:
            payload_of(slot)[:] = payloads[k % SLOTS]
        elif message.slot not in filled:  # in the warm-up: afterwards the slot holds its unit
            payload_of(slot)[:] = payloads[message.slot]
            filled.add(message.slot)
        write_header(slot, SlotHeader(PLAN_HASH, k, message.lease, LAYOUT))
        transport.send(m.Done(k, message.lease, LAYOUT, m.Tally(rows_read=LAYOUT.events)))
    transport.send(m.Bye())
    del slot
    transport.close()


def arena_consumer(
    run_dir: Path, sums: list[int], num_units: int, pids: Sequence[int], answer: Connection, *, in_place: bool
) -> None:
    """Trainer without the training."""
    transport = PeerTransport(run_dir, TransportConfig(), writable=False, stopped=lambda: False)
    transport.send(m.Attach(0, 1, PLAN_HASH, m.Cursor()))
    transport.send(m.Want(CREDIT))
    meter = Meter(pids)
    expected = 0
    for _ in range(num_units):
        unit = transport.receive(PATIENCE_S)
        assert isinstance(unit, m.DeliveredUnit)
        slot = transport.arena.slot(unit.slot)
        check_header(slot, SlotHeader(PLAN_HASH, unit.k, unit.lease, unit.layout))
        meter.read(payload_of(slot))
        expected += sums[unit.slot if in_place else unit.k % SLOTS]
        transport.send(m.Release(unit.k))
        transport.send(m.Want(1))
    answer.send(meter.result(expected))
    transport.send(m.Finished())
    del slot
    transport.close()


def dispatch(run_dir: Path, num_units: int) -> None:
    """Loop of the fetcher's service, with a fixed plan."""
    part = m.Part(0, "/data/muons/0000000-0000999/000123.parquet", 0, 0, LAYOUT.events, LAYOUT.particles, 0)
    dispatcher = Dispatcher(slots=SLOTS, plan_hash=PLAN_HASH, max_unit_deaths=3, stall_timeout_s=PATIENCE_S)
    dispatcher.add_units([m.Unit(k, 0, 0, 0, (part,)) for k in range(num_units)])
    dispatcher.end_plan()
    deadline_s = time.monotonic() + PATIENCE_S
    with Arena.create(SLOTS, SLOT_BYTES) as arena:
        transport = ServerTransport(run_dir, TransportConfig(), arena, PLAN_HASH)
        try:
            ended = False
            while not (ended and not dispatcher.decoders):
                assert time.monotonic() < deadline_s, "a process hangs"
                for event in transport.poll(0.2):
                    match event:
                        case Received(peer, message):
                            actions = dispatcher.handle(peer, message)
                        case Lost(peer):
                            actions = dispatcher.lose(peer)
                    ended |= _act(transport, dispatcher, actions)
                dispatcher.tick(time.monotonic())
        finally:
            transport.close()


def _act(transport: ServerTransport, dispatcher: Dispatcher, actions: Sequence[Action]) -> bool:
    """Execute the dispatcher's actions. True once the trainer has finished and the decoders are notified."""
    for action in actions:
        match action:
            case Send(peer, message):
                transport.send(peer, message)
            case EndRun():
                for peer in list(dispatcher.decoders.by_name):
                    transport.send(peer, m.Stop())
                return True
    return False


def through_arena(payloads: list[Bytes], sums: list[int], num_units: int, *, in_place: bool) -> Measured:
    """Measurement of the arena, with the dispatcher in this process."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        producer = FORK.Process(target=arena_producer, args=(run_dir, payloads), kwargs={"in_place": in_place})
        producer.start()
        answers, answer = FORK.Pipe(duplex=False)
        pids = (_pid(producer), 0, os.getpid())
        consumer = FORK.Process(
            target=arena_consumer, args=(run_dir, sums, num_units, pids, answer), kwargs={"in_place": in_place}
        )
        consumer.start()
        dispatch(run_dir, num_units)
        return _end(producer, consumer, answers, answer)


# ------------------------------------------------------------------ the others


def zmq_producer(address: str, payloads: list[Bytes], num_units: int) -> None:
    """Push units from the producer's own memory."""
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, SLOTS // 2)
    socket.connect(address)
    for k in range(num_units):
        socket.send_multipart([b"%d" % k, payloads[k % SLOTS].data], copy=False)
    socket.close()
    context.term()


def zmq_units(address: str, num_units: int) -> Iterator[Bytes]:
    """Units pulled from the socket, as views of ZeroMQ's frames."""
    context = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, SLOTS // 2)
    socket.bind(address)
    for _ in range(num_units):
        yield np.frombuffer(socket.recv_multipart(copy=False)[1].buffer, np.uint8)
    socket.close()
    context.term()


def queue_producer(queue: Queue[tuple[int, Bytes]], payloads: list[Bytes], num_units: int) -> None:
    """Put units into the queue."""
    for k in range(num_units):
        queue.put((k, payloads[k % SLOTS]))


def queue_units(queue: Queue[tuple[int, Bytes]], num_units: int) -> Iterator[Bytes]:
    """Units from the queue."""
    for _ in range(num_units):
        yield queue.get(timeout=PATIENCE_S)[1]


def consume(units: Iterator[Bytes], sums: list[int], num_units: int, producer: int, answer: Connection) -> None:
    """Read all units and send the measurement."""
    meter = Meter((producer, 0))
    for unit in units:
        meter.read(unit)
    answer.send(meter.result(sum(sums[k % SLOTS] for k in range(num_units))))


def through_zmq(payloads: list[Bytes], sums: list[int], num_units: int) -> Measured:
    """Measurement of ZeroMQ, without shared memory: the kernel moves the bytes."""
    address = f"ipc://@icestream-bench-{os.getpid()}"
    producer = FORK.Process(target=zmq_producer, args=(address, payloads, num_units))
    return _pair(producer, lambda: zmq_units(address, num_units), sums, num_units)


def through_queue(payloads: list[Bytes], sums: list[int], num_units: int) -> Measured:
    """Measurement of multiprocessing.Queue, the obvious first version."""
    queue: Queue[tuple[int, Bytes]] = FORK.Queue(SLOTS)
    producer = FORK.Process(target=queue_producer, args=(queue, payloads, num_units))
    return _pair(producer, lambda: queue_units(queue, num_units), sums, num_units)


def _pair(
    producer: mp.context.ForkProcess, units: Callable[[], Iterator[Bytes]], sums: list[int], num_units: int
) -> Measured:
    producer.start()
    answers, answer = FORK.Pipe(duplex=False)

    def target() -> None:
        consume(units(), sums, num_units, _pid(producer), answer)

    consumer = FORK.Process(target=target)
    consumer.start()
    return _end(producer, consumer, answers, answer)


def _end(
    producer: mp.context.ForkProcess, consumer: mp.context.ForkProcess, answers: Connection, answer: Connection
) -> Measured:
    answer.close()
    assert answers.poll(PATIENCE_S), "the consumer hangs"
    measured = answers.recv()
    assert isinstance(measured, Measured)
    for process in (producer, consumer):
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    return measured


def _pid(process: mp.context.ForkProcess) -> int:
    assert process.pid is not None
    return process.pid


# ------------------------------------------------------------------ the table

Way = Callable[[list[Bytes], list[int], int], Measured]

WAYS: dict[str, Way] = {
    "arena, in place": lambda payloads, sums, n: through_arena(payloads, sums, n, in_place=True),
    "arena, one copy": lambda payloads, sums, n: through_arena(payloads, sums, n, in_place=False),
    "ZeroMQ": through_zmq,
    "Queue": through_queue,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Hand-over of ready-made units from one process to another.")
    parser.add_argument("--gib", type=float, default=2.0, help="data in each run, after the warm-up")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # a leaving peer is expected here
    payloads = make_payloads()
    sums = [int(payload.view(np.uint64).sum()) for payload in payloads]
    num_timed = max(1, round(arguments.gib * 2**30 / SLOT_BYTES))
    timed_gb = num_timed * len(payloads[0]) / 1e9

    runs: dict[str, list[Measured]] = {way: [] for way in WAYS}
    for _ in range(arguments.repeats):
        for way, run in WAYS.items():
            runs[way].append(run(payloads, sums, WARM_UP + num_timed))

    speed = {way: timed_gb / statistics.median(one.seconds for one in of_way) for way, of_way in runs.items()}
    cpu = {way: statistics.median(sum(one.cpu_s) for one in of_way) / timed_gb for way, of_way in runs.items()}
    print(
        f"{'':<17}{'GB/s':>7}{'slowest':>9}{'fastest':>9}{'× ZeroMQ':>10}{'× Queue':>9}"
        f"{'CPU s/GB':>10}{'producer':>10}{'consumer':>10}{'dispatcher':>12}"
    )
    for way, of_way in runs.items():
        each = [timed_gb / one.seconds for one in of_way]
        parts = [statistics.median(part) / timed_gb for part in zip(*(one.cpu_s for one in of_way), strict=True)]
        print(
            f"{way:<17}{speed[way]:>7.2f}{min(each):>9.2f}{max(each):>9.2f}"
            f"{speed[way] / speed['ZeroMQ']:>10.2f}{speed[way] / speed['Queue']:>9.2f}{cpu[way]:>10.3f}"
            f"{parts[0]:>10.3f}{parts[1]:>10.3f}{parts[2] if len(parts) > 2 else 0.0:>12.3f}"
        )
    ratios = {other: speed["arena, in place"] / speed[other] for other in AIMS}
    figures = {
        "benchmark": "handover",
        "unit_bytes": len(payloads[0]),
        "gb_per_s": {way: round(value, 3) for way, value in speed.items()},
        "cpu_s_per_gb": {way: round(value, 3) for way, value in cpu.items()},
        "times_as_fast_as": {other: round(ratio, 2) for other, ratio in ratios.items()},
        "aims": AIMS,
        "aims_met": all(ratios[other] >= aim for other, aim in AIMS.items()),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
