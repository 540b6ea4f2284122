"""Network interface of this machine that leads to rank 0."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915
_IF_INET6 = Path("/proc/net/if_inet6")


def interface_to(address: str, port: int) -> str:
    """Name of the interface whose address the kernel uses towards ``address``; empty if it can't be determined.

    On the machine that has this address it is the interface with it. Nothing is sent.
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
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
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        found.add(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):
        for line in _IF_INET6.read_text().splitlines():
            digits, *_, owner = line.split()
            if owner == name:
                found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found
