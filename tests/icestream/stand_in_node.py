"""Stand-in for `icestream node` that obeys its contract: exit codes, SIGTERM, a checkpoint, a lost node noticed.

Nodes count steps together over connections to node 0. They go on until the test makes the file `finish` in the shared
folder, so that no test depends on their speed. Everything that happens to one is a line of `story.txt`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

LOST_ANOTHER, STOPPED = 75, 130
SILENT_S = 3.0
"""Silence after which another node counts as lost: below the patience of whoever started them."""
BEAT_S = 0.05
STOP = b"s"


class LostAnotherNode(Exception):
    """Another node is gone."""


class StandInNode:
    """One node of several."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.shared: Path = arguments.shared
        self.step = int(self.checkpoint.read_text()) if self.checkpoint.exists() else 0
        self.is_stopped = False
        signal.signal(signal.SIGTERM, self.stop)

    @property
    def checkpoint(self) -> Path:
        return self.shared / "checkpoint"

    def stop(self, number: int, frame: object) -> None:
        self.is_stopped = True

    def tell(self, what: str) -> None:
        story = os.open(self.shared / "story.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(story, f"node {self.arguments.node} of {self.arguments.nodes} {what}\n".encode())
        os.close(story)

    def save(self) -> None:
        if self.arguments.node == 0:
            part = self.shared / "checkpoint.part"
            part.write_text(str(self.step))
            part.replace(self.checkpoint)

    def run(self) -> int:
        machine = os.environ.get("STAND_IN_MACHINE", "")
        self.tell(f"started machine={machine} pid={os.getpid()} step={self.step} master={self.arguments.master}")
        try:
            code = self.count(self.meet())
        except (OSError, LostAnotherNode):
            code = LOST_ANOTHER
        self.tell(f"ended {code}")
        return code

    def meet(self) -> list[socket.socket]:
        """Connections to the other nodes: of node 0 to all, of another one to node 0."""
        host, _, port = self.arguments.master.rpartition(":")
        deadline_s = time.monotonic() + 30
        if self.arguments.node == 0:
            with socket.create_server((host, int(port))) as server:
                server.settimeout(BEAT_S)
                return self.accepted(server, deadline_s)
        while True:
            try:
                return [socket.create_connection((host, int(port)), timeout=5)]
            except OSError:
                if time.monotonic() > deadline_s or self.is_stopped:
                    raise
                time.sleep(BEAT_S)

    def accepted(self, server: socket.socket, deadline_s: float) -> list[socket.socket]:
        """Connections of all others, or an end of the wait for them."""
        others: list[socket.socket] = []
        while len(others) < self.arguments.nodes - 1 and not self.is_stopped:
            try:
                others.append(server.accept()[0])
            except TimeoutError:
                if time.monotonic() > deadline_s:
                    raise
        return others

    def count(self, others: list[socket.socket]) -> int:
        heard_s = dict.fromkeys(others, time.monotonic())
        while True:
            time.sleep(BEAT_S)
            if self.is_stopped:
                send(others, STOP)
                self.save()
                return STOPPED
            if (self.shared / "finish").exists():
                self.save()
                return 0
            for other in select.select(others, [], [], 0)[0]:
                heard = other.recv(4096)
                if not heard:
                    return 0 if (self.shared / "finish").exists() else LOST_ANOTHER
                heard_s[other] = time.monotonic()
                self.is_stopped |= STOP in heard  # as all trainers stop before the same step
            send(others, b".")
            if any(time.monotonic() - then_s > SILENT_S for then_s in heard_s.values()):
                raise LostAnotherNode
            self.step += 1
            if self.step % 5 == 0:
                self.save()
                show(f"step {self.step}")


def send(others: list[socket.socket], what: bytes) -> None:
    """Send to all; that one is gone is noticed when it is heard no more."""
    for other in others:
        with contextlib.suppress(OSError):
            other.sendall(what)


def show(text: str) -> None:
    """Write a line of output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Behave as the arguments say; unknown ones belong to `icestream run` and are noted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb")
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    for name in ("--shared", "--run-dir"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--refuses", action="store_true")
    arguments, others = parser.parse_known_args()
    node = StandInNode(arguments)
    node.tell(f"given {others}")
    if arguments.refuses and arguments.node == 1:
        show("Error: no such file: https://me:hunter2@host.example/x")
        sys.exit(2)
    sys.exit(node.run())


if __name__ == "__main__":
    main()
