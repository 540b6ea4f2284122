"""Parser of tcp:// addresses in the configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from common.errors import BadInputError

# No ";": ZeroMQ would use the part behind it as the address.
_TCP = re.compile(r"tcp://(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>\*|[0-9A-Za-z][0-9A-Za-z._-]*)):(?P<port>\d{1,5}|\*)")


@dataclass(frozen=True)
class Endpoint:
    """Address of a trainer over tcp."""

    host: str
    """Host without brackets; `*` for every interface."""
    port: int
    """Port number; 0: any free one."""

    @property
    def is_ipv6(self) -> bool:
        """True for an IPv6 address."""
        return ":" in self.host

    @property
    def url(self) -> str:
        """Address in ZeroMQ's format."""
        host = f"[{self.host}]" if self.is_ipv6 else self.host
        return f"tcp://{host}:{self.port or '*'}"


def parse_endpoint(text: str, setting: str, *, example: str) -> Endpoint:
    """Address in ``text``, with localhost as 127.0.0.1. Raises BadInputError that names ``setting``."""
    match = _TCP.fullmatch(text)
    port = 0 if match is None or match["port"] == "*" else int(match["port"])
    if match is None or port > 65_535:
        raise BadInputError(f"{setting} = {text!r}: expected tcp://HOST:PORT, for example {example}")
    host = match["six"] or match["host"]
    return Endpoint("127.0.0.1" if host == "localhost" else host, port)


def require_keys(keys: Path | None, endpoint: Endpoint, setting: str) -> Path:
    """Folder of keys. Raises BadInputError if there is none: loopback, too, is open to every user of a host."""
    if keys is None:
        side = (
            "`icestream keys keys`, then --set transport.keys=keys"
            if setting == "transport.listen"
            else "copy `for-trainer` of the fetcher's keys here, then --keys for-trainer"
        )
        raise BadInputError(
            f"{setting} = {endpoint.url}: a trainer over tcp needs keys: {side} (see docs/how-to/remote-trainer.md)"
        )
    return keys
