"""Data-parallel training in several processes: sums of gradients, and exchange of texts and bytes.

Gradients and numbers on the device are summed by one all-reduce of a flat buffer (gloo on the CPU, nccl on CUDA).
Texts and bytes are sent over gloo as byte tensors: an exchange never waits for the device. torch's own ``*_object``
calls are not used: they read pickles.
"""

from __future__ import annotations

import io
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from common.errors import BadInputError
from common.transport import StopRequested
from services.trainer.ranks.interface import interface_to
from services.trainer.ranks.rank_place import RankPlace

logger = logging.getLogger(__name__)

_FRAME_BYTES = 1024
"""Length up to which a text is sent in one exchange; a longer one takes two."""
_LENGTH_BYTES = 8
_POLL_S = 0.1
_TELL_S = 10.0
_MISSING_S = 3.0
"""Time that the remaining ranks wait for each other's sign of life, to determine which rank is gone."""
_ABORT_S = 20.0
"""Longest time that nccl may take to give up its communication with a lost rank."""


class RankLost(Exception):
    """Error: another rank is gone. This one can't continue alone, and ends; all resume from the newest checkpoint."""


class Ranks:
    """Ranks of a run, as seen by one of them. Every method is called by all of them, in the same order."""

    def __init__(self, rank: int, size: int, group: Any = None) -> None:
        """``group``: process group of torch for texts and bytes; None: the default one."""
        self.rank = rank
        self.size = size
        self._group = group
        self._store: Any = None
        self._device_group: Any = None

    @classmethod
    def alone(cls) -> Ranks:
        """Group of a single process: nothing is sent."""
        return cls(0, 1)

    @classmethod
    def of_callers_group(cls) -> Ranks:
        """Ranks of the process group that the caller of icestream has made. All ranks call this at the same time."""
        return cls(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo"))

    @classmethod
    def join(cls, place: RankPlace, device: torch.device, *, timeout_s: float, stopped: Callable[[], bool]) -> Ranks:
        """Join the group; waits for the other ranks.

        Raises BadInputError that names the ranks missing after ``timeout_s``, StopRequested once ``stopped()`` is true.
        """
        if not dist.is_available():
            raise BadInputError("this torch was built without torch.distributed, which several trainers need")
        from torch._C._distributed_c10d import PrefixStore

        if interface := "lo" if place.is_local else interface_to(place.address, place.port):
            # Otherwise the ranks would listen at all addresses of the machine, or at one that others don't reach.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        if not place.is_local:
            logger.warning(
                "the ranks meet at %s, by the interface %s: their messages are neither encrypted nor signed",
                place.address,
                os.environ.get("GLOO_SOCKET_IFNAME", "that torch chooses"),
            )
        ranks = cls(place.rank, place.size)
        deadline_s = time.monotonic() + timeout_s
        ranks._store = _open_store(place, deadline_s, timeout_s, stopped)
        _await_all(ranks._store, place, deadline_s, timeout_s, stopped)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        timeout = timedelta(seconds=timeout_s)
        with ranks._watched():
            dist.init_process_group(
                "gloo", store=PrefixStore("group", ranks._store), rank=place.rank, world_size=place.size,
                timeout=timeout,
            )  # fmt: skip
        kinds = ranks.gather(device.type)
        if len(set(kinds)) > 1:
            ranks.close()
            raise BadInputError(f"trainer.device differs between the ranks ({', '.join(kinds)}): use the same for all")
        if device.type == "cuda":
            ranks._device_group = dist.new_group(backend="nccl", timeout=timeout)
        logger.info("rank %d of %d, on %s", place.rank, place.size, device)
        return ranks

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
                    dist.all_reduce(flat, group=self._device_group)
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

    def broadcast(self, data: bytes | None) -> bytes:
        """Bytes of the first rank; the argument of the others is ignored."""
        if self.size == 1:
            assert data is not None
            return data
        length = torch.tensor([len(data) if self.is_first and data is not None else 0])
        with self._watched():
            dist.broadcast(length, 0, group=self._group)
            tensor = torch.empty(int(length), dtype=torch.uint8)
            if self.is_first and data:
                tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if len(tensor):
                dist.broadcast(tensor, 0, group=self._group)
        return tensor.numpy().tobytes()

    def broadcast_state(self, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """Checkpoint of the first rank, on the CPU, read as from a file (``weights_only``); None if it has none."""
        if self.size == 1:
            return state
        buffer = io.BytesIO()
        if state is not None and self.is_first:
            torch.save(state, buffer)
        data = self.broadcast(buffer.getvalue())
        if self.is_first or not data:
            return state if self.is_first else None
        received: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
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
        all_of_them = [torch.empty(length, dtype=torch.uint8) for _ in range(self.size)]
        with self._watched():
            dist.all_gather(all_of_them, mine, group=self._group)
        return [tensor.numpy().tobytes() for tensor in all_of_them]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Raise RankLost, which names the missing ranks, where torch reports a broken or timed-out connection."""
        try:
            yield
        except RuntimeError as error:
            reason = re.sub(r"^\[\S+\] ", "", " ".join(str(error).split()))
            logger.info("a connection between the ranks broke: %.200s", reason)
            missing = self._who_is_missing()
            self._abort()
            raise RankLost(missing) from None

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
        """Text on the missing ranks: the remaining ranks register in the store; the others are gone."""
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
            return "rank 0 is gone"  # rank 0 keeps the store
        return f"{_names(sorted(left))} gone" if left else "a connection between the ranks broke"


def _names(ranks: Sequence[int]) -> str:
    text = ", ".join(str(rank) for rank in ranks)
    return f"rank {text} is" if len(ranks) == 1 else f"ranks {text} are"


def _open_store(place: RankPlace, deadline_s: float, timeout_s: float, stopped: Callable[[], bool]) -> Any:
    """Rendezvous store of the ranks: a file, or a server of the first rank at its address, or torchrun's server."""
    from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

    if place.file:
        return PrefixStore(f"icestream/{place.attempt}", FileStore(place.file, place.size))
    listener = None
    keeps = place.rank == 0 and not place.agent_keeps_store
    if keeps:
        try:
            listener = _listen(place)
        except OSError as error:
            raise RankLost(f"can't listen at {place.address}:{place.port} ({error.strerror})") from None
    else:
        _await_listener(place, deadline_s, timeout_s, stopped)
    store = TCPStore(
        place.address,
        place.port,
        place.size,
        keeps,
        timedelta(seconds=timeout_s),
        wait_for_workers=False,
        multi_tenant=False,
        master_listen_fd=listener.detach() if listener is not None else None,
    )
    return PrefixStore(f"icestream/{place.attempt}", store)


def _listen(place: RankPlace) -> socket.socket:
    """Listener at the named address only: torch's own would listen at all addresses of the machine."""
    family, kind, protocol, _, address = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(4 * place.size)
    except OSError:
        listener.close()
        raise
    return listener


def _await_listener(place: RankPlace, deadline_s: float, timeout_s: float, stopped: Callable[[], bool]) -> None:
    told_s = time.monotonic()
    while True:
        try:
            socket.create_connection((place.address, place.port), timeout=5.0).close()
            return
        except OSError as error:
            reason = error.strerror or str(error)
        told_s = _pause(
            f"rank 0 at {place.address}:{place.port} (MASTER_ADDR, MASTER_PORT: {reason})",
            deadline_s, timeout_s, told_s, stopped,
        )  # fmt: skip


def _await_all(store: Any, place: RankPlace, deadline_s: float, timeout_s: float, stopped: Callable[[], bool]) -> None:
    store.set(f"here/{place.rank}", "")
    told_s = time.monotonic()
    missing = list(range(place.size))
    while True:
        try:
            missing = [rank for rank in missing if not store.check([f"here/{rank}"])]
        except RuntimeError:
            raise RankLost("rank 0 is gone") from None
        if not missing:
            return
        text = ", ".join(str(rank) for rank in missing)
        told_s = _pause(f"rank {text} of {place.size}", deadline_s, timeout_s, told_s, stopped)


def _pause(whom: str, deadline_s: float, timeout_s: float, told_s: float, stopped: Callable[[], bool]) -> float:
    """Pause between two checks; the time of the newest message about the wait."""
    now_s = time.monotonic()
    if stopped():
        raise StopRequested
    if now_s > deadline_s:
        raise BadInputError(f"{whom} did not connect for {timeout_s:g} s (trainer.ranks_timeout_s); start all ranks")
    if now_s - told_s > _TELL_S:
        told_s = now_s
        logger.info("waiting for %s", whom)
    time.sleep(_POLL_S)
    return told_s
