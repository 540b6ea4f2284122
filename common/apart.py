"""Work in a copy of this process: what ends the copy, as a file that crashes its library does, ends nothing else."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import selectors
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator

from common.process import end_with

Say = Callable[[str], None]

_MOST_LINE_BYTES = 32 << 20
_LAST_S = 5.0
"""Time for a copy to end by itself."""
_BY_ITSELF = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGXCPU)
"""Signals caused by the process itself; others come from outside, or from a disk that fails (SIGBUS)."""


class CopyEnded(Exception):
    """Error: the copy ended before its work did; the text is the signal's name, or its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}" if code >= 0 else signal.Signals(-code).name)
        self.is_own = code >= 0 or -code in _BY_ITSELF
        """True if it caused its own end; False if it was ended from outside."""


def apart(work: Callable[[Say], None]) -> Iterator[str]:
    """Yield the lines that ``work`` says in a copy of this process. Raises CopyEnded, and OSError if there is no copy.

    The copy has this thread alone, and ends with this process or when the iterator is closed.
    """
    heard, said = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    sys.stdout.flush()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of Arrow and ZeroMQ are not used
            pid = os.fork()
    except OSError:
        os.close(heard)
        os.close(said)
        raise
    if not pid:
        _work(work, said, parent)
    os.close(said)
    status: int | None = None
    try:
        with os.fdopen(heard, "rb") as lines:
            while (line := lines.readline(_MOST_LINE_BYTES)).endswith(b"\n"):
                yield line[:-1].decode(errors="replace")
        status = os.waitpid(pid, 0)[1] if not line else None
    finally:
        if status is None:
            _end(pid)
    if code := os.waitstatus_to_exitcode(status) if status is not None else 1:
        raise CopyEnded(code)


def _work(work: Callable[[Say], None], said: int, parent: int) -> None:
    """Body of the copy, which doesn't return."""
    code = 1
    try:
        end_with(parent, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C reaches the parent, which ends this one
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()  # the parent tells its end in one line
        with os.fdopen(said, "w") as answers:
            work(lambda line: print(line, file=answers, flush=True))
        code = 0
    except KeyboardInterrupt:
        pass
    except BaseException:  # noqa: BLE001  the parent tells that it ended
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _end(pid: int) -> None:
    """End a copy that is still at work: it may remove an unfinished file before it is killed."""
    os.kill(pid, signal.SIGTERM)
    pidfd = os.pidfd_open(pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(pidfd, selectors.EVENT_READ)
            if not selector.select(_LAST_S):
                os.kill(pid, signal.SIGKILL)
    finally:
        os.close(pidfd)
        os.waitpid(pid, 0)
