"""Data-parallel training in several processes: sums of gradients, and exchange of texts and bytes.

Gradients and numbers on the device are summed by one all-reduce of a flat buffer (gloo on the CPU, nccl on CUDA).
Texts and bytes are sent over gloo as byte tensors: an exchange never waits for the device. torch's own ``*_object``
calls are not used: they read pickles.
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from common.errors import BadInputError
from common.transport import StopRequested
from services.trainer.environment import HOW, RankPlace

logger = logging.getLogger(__name__)

_SIOCGIFADDR = 0x8915
_IF_INET6 = Path("/proc/net/if_inet6")
_ANY_PORT = 9


def interface_to(address: str) -> str:
    """Name of the interface whose address the kernel uses towards ``address``; empty if it can't be determined.

    On the machine that has this address it is the interface with it. Nothing is sent.
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(address, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            source: str = probe.getsockname()[0]
    except OSError:
        return ""
    if source.startswith("127."):
        return "lo"
    return next((name for _, name in socket.if_nameindex() if source in _addresses(name)), "")


def _addresses(name: str) -> set[str]:
    """Addresses of an interface; of IPv4 its first only."""
    found = set()
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        found.add(socket.inet_ntoa(answer[20:24]))
    with suppress(OSError):
        for line in _IF_INET6.read_text().splitlines():
            digits, *_, owner = line.split()
            if owner == name:
                found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


_FRAME_BYTES = 1024
"""Length up to which a text is sent in one exchange; a longer one takes two."""
_LENGTH_BYTES = 8
_POLL_S = 0.1
_TELL_S = 10.0
_MISSING_S = 3.0
"""Time that the remaining ranks wait for each other's sign of life, to determine which rank is gone."""
_ABORT_S = 20.0
"""Longest time that nccl may take to give up its communication with a lost rank."""
_COMING_S = 300.0
"""Longest wait for a rank that was started with the others: it imports torch, from a shared disk perhaps."""
STEP_TIMEOUT_S = 660.0
"""Time after which a rank counts as lost while all make steps: its machine is frozen or cut off. Longer than the ten
minutes that it may wait for its fetcher, which was lost, and than a validation, or the compilation of a model."""


class RankLost(Exception):
    """Error: another rank is gone. This one can't continue alone, and ends; all resume from the newest checkpoint."""


class Ranks:
    """Ranks of a run, as seen by one of them. Every method is called by all of them, in the same order."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        """Number of this rank, from 0."""
        self.size = size
        """Number of ranks."""
        self._group: Any = None
        """Process group of torch for texts and bytes; None: the default one."""
        self._store: Any = None
        self._device_group: Any = None
        self._connections: set[tuple[int, str]] = set()

    @classmethod
    def alone(cls) -> Ranks:
        """Group of a single process: nothing is sent."""
        return cls(0, 1)

    @classmethod
    def of_callers_group(cls) -> Ranks:
        """Ranks of the process group that the caller of icestream has made. All ranks call this at the same time."""
        ranks = cls(dist.get_rank(), dist.get_world_size())
        with ranks._connecting():
            ranks._group = dist.new_group(backend="gloo")
        return ranks

    @classmethod
    def join(cls, place: RankPlace, device: torch.device, *, timeout_s: float, stopped: Callable[[], bool]) -> Ranks:
        """Join the group; waits for the other ranks.

        Raises RankLost that names the ranks missing after ``timeout_s``, or after five minutes; StopRequested once
        ``stopped()`` is true; BadInputError for ranks that can't belong together.
        """
        if not dist.is_available():
            raise BadInputError("this torch was built without torch.distributed, which several trainers need")
        from torch._C._distributed_c10d import FileStore, PrefixStore

        if not place.file:
            raise BadInputError(f"{place.size} trainers that were not started together: {HOW}")
        if interface := "lo" if place.is_local else interface_to(place.address):
            # Otherwise the ranks would listen at all addresses of the machine, or at one that others don't reach.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        if not place.is_local:
            logger.warning(
                "the ranks send by the interface %s: their messages are neither encrypted nor signed; if other machines"
                " can't reach it, give torchrun --local-addr",
                os.environ.get("GLOO_SOCKET_IFNAME", "that torch chooses"),
            )
        ranks = cls(place.rank, place.size)
        # In a file of the owner's: a store at a port takes what any user sends who reaches it.
        ranks._store = FileStore(place.file, place.size)
        _await_all(ranks._store, place, min(timeout_s, _COMING_S), stopped)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        timeout = timedelta(seconds=timeout_s)
        with ranks._watched(), ranks._connecting():
            dist.init_process_group(
                "gloo", store=PrefixStore("group", ranks._store), rank=place.rank, world_size=place.size,
                timeout=timeout,
            )  # fmt: skip
        kinds = ranks.gather(device.type)
        if len(set(kinds)) > 1:
            ranks.close()
            raise BadInputError(f"trainer.device differs between the ranks ({', '.join(kinds)}): use the same for all")
        logger.info("rank %d of %d, on %s", place.rank, place.size, device)
        return ranks

    def begin_steps(self, device: torch.device) -> None:
        """Wait for all, and expect from now on that none is silent for STEP_TIMEOUT_S. For ranks that have joined."""
        if self._store is None:
            return
        self.gather("begins")
        timeout = timedelta(seconds=STEP_TIMEOUT_S)
        with self._watched():
            with self._connecting():
                self._group = dist.new_group(backend="gloo", timeout=timeout)
            if device.type == "cuda":
                self._device_group = dist.new_group(backend="nccl", timeout=timeout)

    @property
    def is_first(self) -> bool:
        """True for the rank that writes for all."""
        return self.rank == 0

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Sum over all ranks, in place: one all-reduce for each dtype. The same bits on every rank."""
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        with torch.no_grad():
            for same in by_dtype.values():
                flat = torch.cat([tensor.reshape(-1) for tensor in same])
                with self._watched():
                    dist.all_reduce(flat, group=self._device_group or self._group)
                parts = flat.split([tensor.numel() for tensor in same])
                # One operator on a GPU, not one for each weight.
                torch._foreach_copy_(same, [part.view_as(one) for part, one in zip(parts, same, strict=True)])

    def gather(self, text: str) -> list[str]:
        """Texts of all ranks, in the order of the ranks."""
        if self.size == 1:
            return [text]
        data = text.encode()
        header = len(data).to_bytes(_LENGTH_BYTES, "little")
        frames = self._gather_bytes((header + data)[:_FRAME_BYTES], _FRAME_BYTES)
        lengths = [int.from_bytes(frame[:_LENGTH_BYTES], "little") for frame in frames]
        begin = _LENGTH_BYTES
        if max(lengths) > _FRAME_BYTES - _LENGTH_BYTES:
            frames, begin = self._gather_bytes(data, max(lengths)), 0
        return [frame[begin : begin + length].decode() for frame, length in zip(frames, lengths, strict=True)]

    def broadcast(self, content: dict[str, Any] | None) -> dict[str, Any]:
        """Tensors (on the CPU), numbers and texts of the first rank, read as from a file (``weights_only``); the
        argument of the others is ignored."""
        if self.size == 1:
            assert content is not None
            return content
        buffer = io.BytesIO()
        if self.is_first:
            torch.save(content, buffer)
        length = torch.tensor([buffer.tell()])
        with self._watched():
            dist.broadcast(length, 0, group=self._group)
            data = torch.frombuffer(bytearray(buffer.getvalue() or int(length)), dtype=torch.uint8)
            dist.broadcast(data, 0, group=self._group)
        received: dict[str, Any] = torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=True)
        return received

    def close(self) -> None:
        """Leave the group in good order."""
        if self._store is not None:
            self._store = None
            dist.destroy_process_group()

    # -------------------------------------------------------------- within

    def _gather_bytes(self, data: bytes, length: int) -> list[bytes]:
        """Bytes of all ranks, each padded with zeros to ``length``."""
        mine = torch.from_numpy(np.frombuffer(data.ljust(length, b"\0"), np.uint8).copy())
        all_of_them = torch.empty(self.size, length, dtype=torch.uint8)
        with self._watched():
            # gloo's all_gather goes round a ring: each rank waits as often as there are ranks.
            dist.gather(mine, list(all_of_them) if self.is_first else None, group=self._group)
            dist.broadcast(all_of_them, 0, group=self._group)
        return [row.numpy().tobytes() for row in all_of_them]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Raise RankLost, which names the missing ranks, where torch reports a broken or timed-out connection."""
        try:
            yield
        except RuntimeError as error:
            reason = re.sub(r"^\[\S+\] ", "", " ".join(str(error).split()))
            logger.info("a connection between the ranks broke: %.200s", reason)
            self._hang_up()
            missing = self._who_is_missing() or f"a connection between the ranks broke: {reason:.300}"
            self._abort()
            raise RankLost(missing) from None

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        """Note the connections that gloo makes in this block: torch can't close them without the other ranks."""
        before = _open_sockets()
        try:
            yield
        finally:
            self._connections |= _open_sockets() - before

    def _hang_up(self) -> None:
        """Close the connections, so that ranks which wait for this one learn of the end, too, and can say that they
        live. Those of a lost rank alone are closed already."""
        for descriptor, _ in self._connections & _open_sockets():
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                is_listener = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)  # gloo would end us
                if connection.family in (socket.AF_INET, socket.AF_INET6) and not is_listener:
                    connection.shutdown(socket.SHUT_RDWR)

    def _abort(self) -> None:
        """Give up the group: nothing waits for a lost rank any more, neither the device nor a later close().

        nccl's operations on the device would wait for that rank, and destroying the group for them.
        """
        self._store = None
        group, self._device_group = self._device_group, None
        if group is None:
            return

        def abort() -> None:
            with suppress(RuntimeError):
                group.abort()

        thread = threading.Thread(target=abort, name="abort-nccl", daemon=True)
        thread.start()
        thread.join(_ABORT_S)
        if thread.is_alive():
            logger.warning("nccl did not give up a lost rank within %g s; this rank ends without it", _ABORT_S)

    def _who_is_missing(self) -> str:
        """Text on the missing ranks: the remaining ranks register in the store; the others are gone, or busy for longer
        than three seconds. Empty: none is missing."""
        left = set(range(self.size)) - {self.rank}
        if self._store is None:  # a group of the caller
            return "another rank is gone"
        try:
            self._store.set(f"left/{self.rank}", "")
            deadline_s = time.monotonic() + _MISSING_S
            while left and time.monotonic() < deadline_s:
                left = {rank for rank in left if not self._store.check([f"left/{rank}"])}
                time.sleep(_POLL_S)
        except RuntimeError:
            return "another rank is gone; the file in which all meet can't be read"
        text = ", ".join(map(str, sorted(left)))
        return "" if not left else f"rank {text} is gone" if len(left) == 1 else f"one of the ranks {text} is gone"


def _open_sockets() -> set[tuple[int, str]]:
    """Return number and name of each socket of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed again, such as that of this loop
            if (name := str(entry.readlink())).startswith("socket:"):
                found.add((int(entry.name), name))
    return found


def _await_all(store: Any, place: RankPlace, timeout_s: float, stopped: Callable[[], bool]) -> None:
    """Wait for all ranks. Raises StopRequested, and RankLost that names who is missing at the end."""
    store.set(f"here/{place.rank}", "")
    missing = list(range(place.size))
    told_s = time.monotonic()
    deadline_s = told_s + timeout_s
    while True:
        try:
            missing = [rank for rank in missing if not store.check([f"here/{rank}"])]
        except RuntimeError as error:
            raise RankLost(f"{place.file} can't be read: {error}") from None
        if not missing:
            return
        if stopped():
            raise StopRequested
        names, now_s = f"rank {', '.join(map(str, missing))} of {place.size}", time.monotonic()
        if now_s > deadline_s:
            raise RankLost(f"{names} did not connect for {timeout_s:g} s")
        if now_s - told_s > _TELL_S:
            told_s = now_s
            logger.info("waiting for %s", names)
        time.sleep(_POLL_S)
