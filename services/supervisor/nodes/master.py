"""Address at which the trainers of all nodes meet, `--master HOST:PORT`: a port of the machine of node 0."""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass
from typing import Self

from common.errors import BadInputError

_BACKLOG = 512
"""Nodes that may connect: nobody accepts their connections."""
_CONNECT_S = 2.0
_POLL_S = 0.2


@dataclass(frozen=True)
class Master:
    """Host and port, as given."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def require_known(self) -> None:
        """Raise BadInputError if the host has no address."""
        try:
            self._address()
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadInputError(
                f"--master {self}: the host {self.host!r} is not known here ({reason}); name that of node 0, or its"
                " address"
            ) from None

    def listen(self, wait_s: float) -> socket.socket:
        """Listener of node 0 until its trainers start: the port is free, and other nodes see that node 0 is here.

        A port in use may be that of a former start, which is just ending. Raises BadInputError after ``wait_s``.
        """
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                return self._listen()
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    raise BadInputError(
                        f"--master {self}: {self.host} is not this machine, and node 0 runs here; name its host"
                    ) from None
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline_s:
                    raise BadInputError(
                        f"--master {self}: can't listen there ({error.strerror}); choose another port for all nodes"
                    ) from None
            time.sleep(_POLL_S)

    def _listen(self) -> socket.socket:
        family, address = self._address()
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener

    def _address(self) -> tuple[socket.AddressFamily, tuple[object, ...]]:
        family, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        return family, address


class Presence:
    """Connection to the listener at an address, which shows that a process is there."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._connection: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def is_there(self) -> bool:
        """True while the connection is open; it is made first, or again."""
        try:
            if self._connection is None:
                self._connection = socket.create_connection((self._master.host, self._master.port), _CONNECT_S)
                self._connection.setblocking(False)
            if self._connection.recv(1, socket.MSG_PEEK):
                return True
        except BlockingIOError:
            return True
        except OSError:
            pass
        self.__exit__()
        return False


def parse_master(text: str) -> Master:
    """Host and port of a text. Raises BadInputError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or not 1 <= int(port[:6]) <= 65535:
        raise BadInputError(f"--master {text}: expected HOST:PORT, the host of node 0 and a free port of it")
    return Master(host, int(port))
