"""The arena: an anonymous memfd, cut into slots of equal size. Bytes only: no lock, counter or cursor lives in it.

Contract (rule R3 of the queue; the dispatcher holds it by leases, this module by types):

    caller       call                   time                         guarantee afterwards
    fetcher      Arena.create           once, at start               all pages are allocated, size and seals are sealed
    fetcher      Arena.fd               a peer's lifeline opened     the peer has a descriptor of its own
    decoder      Arena.attach(write)    after its lifeline opened    it may write into slots that it has leased, only
    decoder      slot(i)                between Lease and Done       no other process reads or writes slot i
    trainer      Arena.attach(read)     after its lifeline opened    it may read slots that were delivered to it, only
    trainer      slot(i)                delivery to Release or Reject no process writes slot i
    any          close                  at its end                   its mapping is gone; the last one frees the memory
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from common.errors import BadInputError
from common.memory_limit import available_memory_bytes

# linux/fcntl.h: not in Python's fcntl module before 3.13.
_F_ADD_SEALS = 1033
_F_SEAL_SEAL = 0x0001
_F_SEAL_SHRINK = 0x0002
_F_SEAL_GROW = 0x0004

Bytes = npt.NDArray[np.uint8]


class Arena:
    """Mapping of the slab. Use it as a context manager, or close it."""

    def __init__(self, fd: int, slots: int, slot_bytes: int, *, writable: bool) -> None:
        self.fd = fd
        self.slots = slots
        self.slot_bytes = slot_bytes
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(fd, slots * slot_bytes, mmap.MAP_SHARED, protection)
        self._bytes: Bytes | None = np.frombuffer(self._map, np.uint8)

    @classmethod
    def create(cls, slots: int, slot_bytes: int, wait: Callable[[], bool] = lambda: False) -> Self:
        """Allocate the slab in full.

        ``wait`` is called while there is too little memory: it pauses, and returns False to give up. Raises
        BadInputError if there is not enough memory.
        """
        while True:
            try:
                return cls._allocate(slots, slot_bytes)
            except BadInputError:
                if not wait():
                    raise

    @classmethod
    def _allocate(cls, slots: int, slot_bytes: int) -> Self:
        size = slots * slot_bytes
        fd = os.memfd_create("icestream-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # tmpfs pages are allocated on first touch, and a touch that finds no memory is a SIGBUS: ask now.
            if size > available_memory_bytes():
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
            return cls(fd, slots, slot_bytes, writable=True)
        except OSError as error:
            os.close(fd)
            if error.errno not in (errno.ENOMEM, errno.ENOSPC):
                raise
            raise BadInputError(
                f"an arena of stream.slots = {slots} × stream.slot_mib = {slot_bytes / 2**20:g} "
                f"({size / 2**30:.2f} GiB) does not fit into memory; lower one of them"
            ) from None

    @classmethod
    def attach(cls, fd: int, slots: int, slot_bytes: int, *, writable: bool) -> Self:
        """Map a slab whose descriptor was received; takes the descriptor over."""
        if os.fstat(fd).st_size != slots * slot_bytes:
            os.close(fd)
            raise ValueError("the arena's descriptor has another size than was announced")
        return cls(fd, slots, slot_bytes, writable=writable)

    @property
    def size_bytes(self) -> int:
        """Size of the whole slab."""
        return self.slots * self.slot_bytes

    def slot(self, index: int) -> Bytes:
        """(slot_bytes,) uint8 view of one slot. Raises IndexError outside the arena."""
        if not 0 <= index < self.slots:
            raise IndexError(f"slot {index} of {self.slots}")
        assert self._bytes is not None, "the arena is closed"
        return self._bytes[index * self.slot_bytes : (index + 1) * self.slot_bytes]

    def whole(self) -> Bytes:
        """(size_bytes,) uint8 view of the slab."""
        assert self._bytes is not None, "the arena is closed"
        return self._bytes

    def close(self) -> None:
        """Drop the mapping and the descriptor. Views into it must be gone."""
        if self._bytes is None:
            return
        self._bytes = None
        with contextlib.suppress(BufferError):  # the traceback of an error may hold a view; the mapping ends with it
            self._map.close()
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
