"""Signals that ask the supervisor to stop, as bytes of a socket."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator

from common.process import BATCH_SIGNALS

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *BATCH_SIGNALS)


@contextlib.contextmanager
def stop_signals() -> Iterator[socket.socket]:
    """Socket that yields one byte, the signal's number, for each signal that asks to stop."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)
        old_fd = signal.set_wakeup_fd(sender.fileno())
        old_handlers = {
            number: signal.signal(number, lambda number, frame: None)
            for number in STOP_SIGNALS
            # Under `nohup` a run outlives its terminal.
            if not (number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN)
        }
        try:
            yield receiver
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_fd)
