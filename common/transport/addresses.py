"""Names of a run directory's unix sockets.

`abstract` names leave nothing behind and serve one host; `folder` puts socket files into the run directory's
`sockets/`, for containers that share it. There, paths go through /proc/self/fd, because a unix socket's path has at
most 107 bytes.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

SOCKET_FOLDER = "sockets"
_LIFELINE = "lifeline"


class Addresses:
    """Addresses of a run directory's lifeline and control sockets."""

    def __init__(self, run_dir: Path, mode: str) -> None:
        self.folder_fd: int | None = None
        if mode == "folder":
            folder = run_dir / SOCKET_FOLDER
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        name = f"{os.getuid()}\0{run_dir.resolve()}".encode()
        self._abstract = f"icestream-{hashlib.blake2b(name, digest_size=12).hexdigest()}"

    @property
    def lifeline(self) -> str:
        """Address of the lifeline's listener, for socket.bind and connect."""
        if self.folder_fd is None:
            return f"\0{self._abstract}"
        return f"/proc/self/fd/{self.folder_fd}/{_LIFELINE}"

    def control(self, token: str) -> str:
        """Endpoint of the control socket, for ZeroMQ; only welcomed peers know its token."""
        if self.folder_fd is None:
            return f"ipc://@icestream-{token}"
        return f"ipc:///proc/self/fd/{self.folder_fd}/{token}"

    def close(self) -> None:
        if self.folder_fd is not None:
            os.close(self.folder_fd)
            self.folder_fd = None
