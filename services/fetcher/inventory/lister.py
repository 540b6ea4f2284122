"""Background listing of ranges, one after the other, in a thread of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from common.errors import IcestreamError
from common.plan import SourceFile
from services.fetcher.inventory.ranges import InputRange

Expand = Callable[[InputRange], list[SourceFile]]


class Lister:
    """Listing thread. ``wake_fd`` is readable when collect() has a result. ``expand`` is called in the thread."""

    def __init__(self, expand: Expand) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._expand = expand
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="list")
        self._future: Future[list[SourceFile]] | None = None

    @property
    def busy(self) -> bool:
        """True from begin() until collect() has returned the outcome."""
        return self._future is not None

    def begin(self, one: InputRange) -> None:
        """Begin to list a range."""
        assert self._future is None
        self._future = self._thread.submit(self._expand, one)
        self._future.add_done_callback(lambda future: os.eventfd_write(self.wake_fd, 1))

    def collect(self) -> list[SourceFile] | IcestreamError | None:
        """Files of the range, or the error of its listing; None while it is being listed."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        if self._future is None or not self._future.done():
            return None
        future, self._future = self._future, None
        try:
            return future.result()
        except IcestreamError as error:
            return error

    def close(self) -> None:
        """Wait for the thread; a listing has timeouts of its own."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        os.close(self.wake_fd)
