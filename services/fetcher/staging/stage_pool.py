"""Worker threads that stage files. Temporary failures (a server that can't be reached) are retried until they pass."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor

from common.plan import Footer, SourceFile, StagedFile
from services.fetcher.staging.stage import NotStaged, Stage

logger = logging.getLogger(__name__)

AGAIN_S = 10.0
"""Longest pause before a file is tried again; the first ones are shorter, since most hiccups are."""
_FIRST_AGAIN_S = 1.0

Job = tuple[int, SourceFile, Footer | None]


class StagePool:
    """Pool of staging threads. Only the staging runs in them; ``wake_fd`` is readable when collect() has results."""

    def __init__(self, stage: Stage, workers: int, *, again_s: float = AGAIN_S) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stage = stage
        self._again_s = again_s
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="stage")
        self._done: queue.SimpleQueue[tuple[Job, Future[StagedFile | NotStaged]]] = queue.SimpleQueue()
        self._again: list[tuple[float, Job]] = []
        self._tries: Counter[int] = Counter()  # by file that waits for another try, or has it
        self.problem = ""
        """Reason that files are not staged yet; empty if none waits for another try, or has it."""

    def submit(self, file: int, source: SourceFile, footer: Footer | None) -> None:
        """Stage a file; ``footer`` if it is known from before."""
        self._start((file, source, footer))

    def collect(self) -> list[StagedFile]:
        """Files staged, or found bad, since the last call. Raises unexpected errors of a worker: ENOSPC, say."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)  # before the queue is emptied: a later result wakes again
        now_s = time.monotonic()
        for due in [due for due in self._again if due[0] <= now_s]:
            self._again.remove(due)
            self._start(due[1])
        staged: list[StagedFile] = []
        while not self._done.empty():
            job, future = self._done.get()
            match future.result():
                case NotStaged(number, reason):
                    pause_s = min(self._again_s, _FIRST_AGAIN_S * 2 ** min(self._tries[number], 10))
                    self._tries[number] += 1
                    logger.warning("%s; trying again in %g s", reason, pause_s)
                    self._again.append((now_s + pause_s * random.uniform(0.75, 1.0), job))
                    self.problem = reason
                case StagedFile() as file:
                    self._tries.pop(file.file, None)
                    staged.append(file)
        if not self._tries:
            self.problem = ""
        return staged

    def close(self) -> None:
        """Wait for the files in transfer, and drop the others."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        os.close(self.wake_fd)

    def _start(self, job: Job) -> None:
        future = self._threads.submit(self._stage, *job)
        future.add_done_callback(lambda future: self._tell(job, future))

    def _tell(self, job: Job, future: Future[StagedFile | NotStaged]) -> None:
        """Hand over the outcome; runs in a worker thread."""
        if not future.cancelled():
            self._done.put((job, future))
            os.eventfd_write(self.wake_fd, 1)
