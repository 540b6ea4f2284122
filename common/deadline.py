"""Deadline of a process that was asked to stop, also while its main thread waits in foreign code.

Python runs the handler of a signal between two of its own instructions: a thread in an all-reduce with a rank that is
gone, or in a write to a file server that doesn't answer, runs none. The kernel's signal does reach a thread of this
module, through the interpreter's wake-up descriptor.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time

logger = logging.getLogger(__name__)

_LOOK_S = 1.0


def end_after_stop(deadline_s: float) -> None:
    """Kill this process ``deadline_s`` after SIGTERM or SIGINT, unless it has ended. Called once, in the main thread,
    by a process that handles these signals.

    Time during which the process is suspended doesn't count.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(receiver, deadline_s), name="deadline", daemon=True).start()


def _watch(receiver: socket.socket, deadline_s: float) -> None:
    while not {signal.SIGTERM, signal.SIGINT} & set(receiver.recv(256)):
        pass
    left_s = deadline_s
    while left_s > 0:
        time.sleep(min(left_s, _LOOK_S))
        left_s -= _LOOK_S  # a suspended process takes longer for it
    logger.error("asked to stop %g s ago, and still waiting for another rank or the machine: ended", deadline_s)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os.kill(os.getpid(), signal.SIGKILL)
