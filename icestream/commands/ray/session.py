"""One call of `icestream ray`: the driver's decisions carried out on a Ray cluster until the run has ended."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ray
from rich.console import Console

from common.errors import BadInputError
from icestream.commands.ray.cluster import Meeting, RayNodes
from icestream.commands.ray.driver import (
    GUARD_KILLS_S,
    ClusterView,
    EndDriver,
    NodeEnded,
    NodeExit,
    NodesDriver,
    ReleaseNodes,
    ReserveMachines,
    StartNodes,
    StopNodes,
)
from icestream.commands.ray.node_actor import NodeJob
from icestream.commands.ray.view import NodesView
from services.supervisor.supervisor import stop_signals

TICK_S = 0.5
LISTENS_WITHIN_S = 10.0
"""Longest wait for the head of the cluster."""
HURRY_AFTER_S = 1.0
"""Time after a signal from which another one is a second one: `timeout` and `make` pass on the terminal's."""


@dataclass(frozen=True)
class RaySession:
    """Program of all nodes, and the machines for it."""

    nodes: int
    possible: Sequence[int]
    """Numbers of nodes on which the run can go on."""
    cpus: int
    gpus: int
    wait_s: float
    shared: Path
    run_dir: Path
    options: Sequence[str]
    config: str | None
    environment: Mapping[str, str]
    target: str = "icestream.cli:main"
    kills_after_s: float = GUARD_KILLS_S

    def job_for(self, meeting: Meeting) -> NodeJob:
        """Program of one node."""
        run_dir = self.run_dir / f"node-{meeting.node}"
        return NodeJob(
            target=self.target,
            arguments=(
                "icestream",
                "node",
                *("--node", str(meeting.node), "--nodes", str(meeting.nodes), "--master", meeting.master),
                *("--shared", str(self.shared), "--run-dir", str(run_dir)),
                *self.options,
            ),
            config=self.config,
            environment=dict(self.environment),
            folder=str(Path.cwd()),
            output=f"{run_dir}.log",
            kills_after_s=self.kills_after_s,
        )

    def run(self, address: str) -> int:
        """Run until the end; the exit code. Raises BadInputError without a cluster at ``address``."""
        require_named(address)
        require_listener(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:  # also an address of another form, another version
            raise BadInputError(
                f"no Ray cluster at --address {address} ({error}): start one with `ray start --head`, or name its head"
            ) from None
        try:
            with NodesView(Console()) as view, stop_signals() as signals:
                return self._drive(view, signals)
        finally:
            ray.shutdown()

    def _drive(self, view: NodesView, signals: socket.socket) -> int:
        driver = NodesDriver(self.nodes, self.possible, self.wait_s)
        nodes = RayNodes(self.cpus, self.gpus, self.shared, self.job_for, view.heard)
        stop = StopRequests(signals)
        while True:
            stop.wait(TICK_S)
            nodes.advance()
            view.show(nodes.states, nodes.places)
            if stop.is_urgent:
                view.say("asked again: the nodes are left to their guards, which end them")
                return NodeExit.STOPPED
            state = ClusterView(
                time.monotonic(), nodes.machines(), nodes.states, nodes.resumes_at, nodes.is_refused, stop.is_asked
            )
            for order in driver.decide(state):
                match order:
                    case ReserveMachines(count, why):
                        view.new_attempt()
                        view.say(why)
                        nodes.reserve(count)
                    case StartNodes(why):
                        view.say(why)
                        nodes.start()
                    case StopNodes(why):
                        view.say(why)
                        nodes.stop()
                    case ReleaseNodes(why):
                        view.say(why)
                        for index, node in enumerate(nodes.states):
                            if node in (NodeEnded(NodeExit.FAILED), NodeEnded(NodeExit.USER_ERROR)):
                                view.last_lines(index)
                        nodes.release()
                    case EndDriver(code, why):
                        view.say(why)
                        return code


def require_named(address: str) -> None:
    """Raise BadInputError for the addresses with which Ray looks for a cluster: it takes that of any user on this
    machine, who then runs code of his as the user of the run."""
    if address.strip().lower() in ("", "auto", "local"):
        raise BadInputError(
            f"--address {address}: Ray would take any user's cluster on this machine; name the HOST:PORT of your own"
            " (`ray start --head` prints it)"
        )


def require_listener(address: str) -> None:
    """Raise BadInputError if nobody listens at HOST:PORT: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "://" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=LISTENS_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise BadInputError(f"no Ray cluster at --address {address} ({error}): name the head's HOST:PORT") from None


class StopRequests:
    """Signals that ask to stop, as they come."""

    def __init__(self, signals: socket.socket) -> None:
        self._signals = signals
        self._asked_s: float | None = None
        self.is_urgent = False
        """True after a second one."""

    @property
    def is_asked(self) -> bool:
        """True after the first one."""
        return self._asked_s is not None

    def wait(self, seconds: float) -> None:
        """Wait for a signal, or the end of the time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals, selectors.EVENT_READ)
            if not selector.select(seconds):
                return
        self._signals.recv(256)
        now_s = time.monotonic()
        if self._asked_s is None:
            self._asked_s = now_s
        elif now_s - self._asked_s >= HURRY_AFTER_S:
            self.is_urgent = True
