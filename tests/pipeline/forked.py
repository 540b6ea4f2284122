"""Processes of icestream that are forked from one that has imported everything (`zygote.py`)."""

from __future__ import annotations

import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from zygote import PADDING


class Forked:
    """What tests use of `subprocess.Popen`, for a command that is forked."""

    def __init__(self, command: Sequence[str], *, output: int, environment: Mapping[str, str], cwd: Path) -> None:
        reading, writing = os.pipe()
        request = json.dumps({"command": list(command), "env": dict(environment), "cwd": str(cwd)})
        try:
            socket.send_fds(zygote(), [request.encode()], [output, writing])
        finally:
            os.close(writing)
        self._told = open(reading, "rb", buffering=0)  # noqa: PTH123, SIM115
        self.pid = int(self._line() or 0)
        assert self.pid, "the zygote has ended: see its output above"
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code (minus the signal that killed it); None while it is alive."""
        return self._await(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        code = self._await(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _await(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            with selectors.PollSelector() as selector:
                selector.register(self._told, selectors.EVENT_READ)
                if not selector.select(timeout_s):
                    return None
            self.returncode = int(self._line())
            self._told.close()
        return self.returncode

    def _line(self) -> bytes:
        return self._told.readline()


@functools.cache
def zygote() -> socket.socket:
    """The socket of this session's zygote, which ends when the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
    with theirs:
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py")), str(theirs.fileno()), PADDING],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=inherited | {"OMP_NUM_THREADS": "1"},
        ).returncode = 0  # it is nobody's to wait for
    return ours
