"""A free port for a process that a test starts a moment later."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path


def free_port() -> int:
    """Free port of the loopback interface, below those that the kernel gives to whoever asks for any.

    One of those could be another test's before the process has it.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    lowest = min(10_000, first // 2)
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", lowest + secrets.randbelow(first - lowest)))
            except OSError:
                continue
            return int(probe.getsockname()[1])
