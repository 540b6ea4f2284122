"""Behaviour of service processes: stop on signals, end with the parent, log one line an event."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from common.redacted_log import redact_everything

PARENT_VARIABLE = "_ICESTREAM_PARENT"
"""Variable with the process id of a parent whose services are to end with it."""


_PR_SET_PDEATHSIG = 1


BATCH_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that batch systems send before the end of a job's time."""


class StopFlag:
    """Flag that is True after a signal that asks to stop; the service checks it between two actions.

    A child of `icestream run` leaves the signals of batch systems, which may reach all processes of a job, to its
    parent: that stops the trainer first.
    """

    def __init__(self) -> None:
        self._stopped = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for number in BATCH_SIGNALS:
            signal.signal(number, signal.SIG_IGN if PARENT_VARIABLE in os.environ else self._stop)

    def __bool__(self) -> bool:
        return self._stopped

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True


def end_with_parent(number: signal.Signals) -> None:
    """Let the kernel send ``number`` to this process when the parent dies; no effect without a parent set."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None:
        end_with(int(parent), number)


def end_with(parent: int, number: signal.Signals) -> None:
    """Let the kernel send ``number`` to this process when the process ``parent``, which started it, dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os.kill(os.getpid(), number)


def is_suspended(pid: int) -> bool:
    """True if a process is stopped by a signal, frozen with its control group, or in uninterruptible sleep (a file
    system that doesn't answer): its silence is caused by the machine. False if that can't be determined."""
    try:
        # The name, in parentheses, may contain any text: the state follows the last parenthesis.
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        if state in ("T", "t", "D"):
            return True
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        group = next((line.removeprefix("0::/") for line in groups if line.startswith("0::/")), "")
        return "frozen 1" in Path("/sys/fs/cgroup", group, "cgroup.events").read_text().splitlines()
    except (OSError, IndexError):
        return False


LOG_DATES = "%Y-%m-%d %H:%M:%S"


def log_format(name: str) -> str:
    """Format of a log line of the service ``name``."""
    return f"%(asctime)s {name} %(levelname)s %(message)s"


def start_logging(name: str) -> None:
    """Log to standard error, each line with time and service, and none with a token."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=log_format(name),
        datefmt=LOG_DATES,
    )
    redact_everything()


def tell_thread_errors() -> None:
    """Log an OSError that ends a library's thread (a full disk, TensorBoard's writer) in one line, without traceback.

    The user of that thread gets a separate error.
    """
    before = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if isinstance(arguments.exc_value, OSError):
            name = arguments.thread.name if arguments.thread is not None else "a thread"
            logging.getLogger(__name__).error("%s: %s", name, arguments.exc_value)
        else:
            before(arguments)

    threading.excepthook = hook
