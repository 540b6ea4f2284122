"""Supervisor of a run's services as child processes of one machine: start, restart and stop in order.

One thread, one selector: it sleeps until a child ends (pidfd), a signal arrives, a pause or a timeout is over,
or the next update of the display is due.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from common.errors import TRY_AGAIN_EXIT_CODE, USER_ERROR_EXIT_CODE
from common.locks import LOCKS_FOLDER, RunAttempt
from common.paths import shard_dir
from common.process import BATCH_SIGNALS, PARENT_VARIABLE, RANKS_FILE_VARIABLE
from common.status import FetcherStatus, TrainerStatus, read_status
from common.summary import FAILED_EXIT_CODE, SERVICES, ExitStatus
from services.config.root import STOP_TIMEOUT_S
from services.config.settings import LocalConfig
from services.supervisor.child import (
    FETCHER,
    LOGS_FOLDER,
    TRAINER,
    Child,
    RepeatedFailure,
    RestartPolicy,
    child_environment,
    decoder_name,
    fetcher_name,
    how_it_ended,
)

logger = logging.getLogger(__name__)

RANKS_FILES = "ranks-"
"""Begin of the names of the files in which trainers find each other."""

GROUP_END_S = 15.0
"""Time for the others to end by themselves once one has died: they determine which rank is gone, which takes 3 s."""
NODE_GROUP_END_S = 5.0
"""The same on one of several nodes, which all start again: torchrun kills after 30 s what hasn't ended."""


def trainer_names(count: int) -> list[str]:
    """Return the process names of the trainers by rank: trainer, trainer-1, …; none if the caller trains."""
    return ["trainer", *(f"trainer-{rank}" for rank in range(1, count))][:count]


@dataclass
class TrainerGroup:
    """Trainers of a run, of which ``count`` are on this node: they find each other in a file of the owner's.

    On one machine it lies in the run directory, and a restart makes a new one; on several it is the attempt's, in the
    folder that they share. A port would be open for every user who reaches it.
    """

    run_dir: Path
    count: int
    node: int = 0
    nodes: int = 1
    address: str = ""
    """Address of node 0, to which this machine's interface is chosen; empty: all are on this machine."""
    attempt: RunAttempt | None = None
    """Attempt of all nodes; None: the run is on one machine, and the supervisor starts a lost trainer again."""
    _file: Path = Path()

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a trainer, by its process name; none for a single one. The first begins a group."""
        size, rank = self.nodes * self.count, int(name.partition("-")[2] or "0")
        if size == 1:
            return {}
        if rank == 0 and self.attempt is not None:
            self._file = self.attempt.shared / LOCKS_FOLDER / f"{RANKS_FILES}{self.attempt.number}"
        elif rank == 0:
            folder = self.run_dir / LOCKS_FOLDER
            folder.mkdir(mode=0o700, exist_ok=True)
            for former in folder.glob(f"{RANKS_FILES}*"):
                former.unlink(missing_ok=True)
            self._file = folder / f"{RANKS_FILES}{secrets.token_hex(8)}"
        return {
            "RANK": str(self.node * self.count + rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(self.count),
            "MASTER_ADDR": self.address,
            RANKS_FILE_VARIABLE: str(self._file),
        }


def cause_of(exit_codes: Mapping[str, int]) -> str:
    """Return the process that ended the group: a user's mistake first, a signal, an error; the first, if all are 0.

    A rank that lost another one ends with exit code 1, so that it is never named if there is a better reason.
    """

    def weight(name: str) -> int:
        code = exit_codes[name]
        if code == USER_ERROR_EXIT_CODE:
            return 0
        if code < 0:
            return 2 if code == -signal.SIGTERM else 1
        return 3 if code else 4

    return min(exit_codes, key=weight)


INTERRUPTED_EXIT_CODE = 130
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *BATCH_SIGNALS)
UNKILLABLE_S = 10.0
"""Time after SIGKILL from which a living process counts as in uninterruptible sleep."""
FAREWELL_S = 10.0
"""Time for fetcher and decoders to end by themselves after the trainer; a fetcher waits 5 s for decoders."""
NODE_END_S = 3.0
"""Time for a node's fetchers and decoders to end, when another node is gone."""

CommandFor = Callable[[str], Sequence[str]]
"""Command line of the process with this name: fetcher, trainer, trainer-1, decoder-0, … (commands.py)."""


@dataclass(frozen=True)
class Processes:
    """The running processes of a session."""

    pids: Mapping[str, int]
    """Living processes by name."""
    restarts: Mapping[str, int]
    """Number of restarts by service."""
    stopping: bool = False
    """True from the moment at which the session begins to end."""


@dataclass(frozen=True)
class SessionOutcome:
    """The outcome of a session."""

    exit_status: ExitStatus
    exit_code: int
    error: str | None
    restarts: Mapping[str, int]
    seconds: float


@contextlib.contextmanager
def stop_signals() -> Iterator[socket.socket]:
    """Yield a socket that receives one byte, the signal's number, for each signal that asks to stop."""
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


@dataclass(frozen=True)
class StopStep:
    """One stage of stopping: processes that must end before the next stage. No signal: they end by themselves."""

    members: tuple[Child, ...]
    number: signal.Signals | None
    timeout_s: float = math.inf
    """Timeout of this step, if shorter than STOP_TIMEOUT_S."""


class Stopping:
    """An ordered stop: it kills a process that ignores its signal for STOP_TIMEOUT_S, and trusts no kill either."""

    def __init__(self, steps: Sequence[StopStep]) -> None:
        self._steps = deque(steps)
        self._step = StopStep((), None)
        self._killed = False
        self.patience_ends_s = math.inf

    def pursue(self, now_s: float) -> Sequence[Child]:
        """Take the steps that are due; return the processes that were killed and do not end: nothing more helps."""
        while True:
            alive = [child for child in self._step.members if child.alive]
            if alive and now_s < self.patience_ends_s:
                return ()
            if alive and self._killed:
                return alive
            if alive and self._step.number is not None:
                for child in alive:
                    child.kill()
                self._killed, self.patience_ends_s = True, now_s + UNKILLABLE_S
                return ()
            if not self._steps:
                self.patience_ends_s = math.inf
                return ()
            self._step, self._killed = self._steps.popleft(), False
            self.patience_ends_s = now_s + min(self._step.timeout_s, STOP_TIMEOUT_S)
            for child in self._step.members:
                if self._step.number is not None:
                    child.send(self._step.number)


@dataclass(eq=False)
class Supervisor:
    """One session of a run: a fetcher and decoders, of each shard, and trainers as a group. Use from the main thread.

    ``shards``: numbers of the shards to run here; none: the run has no shards. ``local.decoders`` sets the number of
    decoders of each; with "auto" its fetcher's status does.

    ``group``: trainers of all nodes, if there are several. A trainer that dies ends the session, since all start again.

    ``secrets``: secrets of each service, see secrets_allowed(). ``watch`` is called every ``tick_s`` with the running
    processes, ``say`` with one line for each event. A second Ctrl-C kills; within ``hurry_after_s`` of the first it
    counts as the same one, because wrappers such as `timeout` and `make` pass on a signal that the terminal has
    delivered already.
    """

    run_dir: Path
    local: LocalConfig
    command_for: CommandFor
    _: KW_ONLY
    shards: Sequence[int] = ()
    group: TrainerGroup | None = None
    secrets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    watch: Callable[[Processes], None] = lambda processes: None
    say: Callable[[str], None] = lambda text: None
    tick_s: float = 0.5
    hurry_after_s: float = 1.0

    def __post_init__(self) -> None:
        local = self.local
        self._shards: tuple[int | None, ...] = tuple(self.shards) or (None,)
        names = [fetcher_name(shard) for shard in self._shards]
        self._failures = {name: RepeatedFailure() for name in (*names, TRAINER)}
        names += [decoder_name(shard, i) for shard in self._shards for i in range(local.decoders_at_start)]
        names += trainer_names(local.trainers)
        self._children = {name: self._make_child(name) for name in names}
        self._group = self.group or TrainerGroup(self.run_dir, local.trainers)
        self._group_ends_s = math.inf
        """End of the wait for the other trainers, once one has ended."""
        self._selector = selectors.DefaultSelector()
        self._stop: Stopping | None = None
        self._interrupted_s: float | None = None
        self._exit_status: ExitStatus = "failed"
        self._exit_code = FAILED_EXIT_CODE
        self._error: str | None = None

    def _of_service(self, service: str) -> tuple[Child, ...]:
        return tuple(child for child in self._children.values() if child.service == service)

    def _decoders(self, shard: int | None) -> tuple[Child, ...]:
        return tuple(child for child in self._of_service("decoder") if child.shard == shard)

    @property
    def _trainers(self) -> tuple[Child, ...]:
        return self._of_service(TRAINER)

    def _make_child(self, name: str) -> Child:
        policy = RestartPolicy(self.local.restart_min_s)
        return Child(name, self.run_dir / LOGS_FOLDER / f"{name}.log", policy)

    def run(self) -> SessionOutcome:
        """Run all services; return when the run has ended and no child is left."""
        began_s = time.monotonic()
        (self.run_dir / LOGS_FOLDER).mkdir(mode=0o700, exist_ok=True)
        with stop_signals() as received, self._selector:
            self._selector.register(received, selectors.EVENT_READ)
            try:
                for child in self._children.values():
                    self._start(child)
                next_look_s = began_s
                while self._stop is None or any(child.alive for child in self._children.values()):
                    if time.monotonic() >= next_look_s:
                        for shard in self._shards:
                            self._add_decoders(shard)
                        self.watch(self._processes())
                        next_look_s = time.monotonic() + self.tick_s
                    self._turn(received, next_look_s)
            finally:
                self._abandon()
        seconds, restarts = time.monotonic() - began_s, self._processes().restarts
        return SessionOutcome(self._exit_status, self._exit_code, self._error, restarts, seconds)

    def _abandon(self) -> None:
        """Kill all remaining children. There are some only after an unexpected error."""
        alive = [child for child in self._children.values() if child.alive]
        for child in alive:
            child.send(signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for child in alive:
            child.wait(deadline_s - time.monotonic())
            child.kill()
            child.reap() if child.wait(UNKILLABLE_S) else child.leave_behind()

    def _turn(self, received: socket.socket, next_look_s: float) -> None:
        due_s = [next_look_s, self._group_ends_s, *(child.due_s for child in self._children.values())]
        if self._stop is not None:
            due_s.append(self._stop.patience_ends_s)
        for key, _ in self._selector.select(max(0.0, min(due_s) - time.monotonic())):
            if isinstance(key.data, Child):
                self._on_exit(key.data)
            else:
                for number in received.recv(256):
                    self._on_signal(number)
        now_s = time.monotonic()
        for child in self._children.values():
            if now_s >= child.due_s:
                self._start(child)
                if child.name == TRAINER:
                    # It continues from its checkpoint: processes that had nothing left to do are needed again.
                    for other in self._children.values():
                        if not other.alive and other.due_s == math.inf and not other.retired:
                            self._start(other)
        if now_s >= self._group_ends_s:
            self._group_ends_s = math.inf
            for trainer in self._trainers:
                trainer.kill()
        for child in self._stop.pursue(now_s) if self._stop is not None else ():
            self._selector.unregister(child.pidfd)
            self.say(
                f"{child.name} (process {child.pid}) was killed and does not end: it waits for this machine (a file "
                "system that does not answer?); it is left behind, and will do nothing more"
            )
            child.leave_behind()

    def _start(self, child: Child) -> None:
        # The kernel sends the parent-death signal when the thread that forked ends: it has to be the main one.
        environment = child_environment(os.environ, self.secrets.get(child.service, ()))
        environment |= {PARENT_VARIABLE: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        if self._group.attempt is not None:
            environment |= self._group.attempt.environment
        if child.service == TRAINER:
            environment |= self._group.environment(child.name)
        child.start(self.command_for(child.name), environment)
        child.policy.started(time.monotonic())
        logger.info("%s started, process %d", child.name, child.pid)
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)

    def _add_decoders(self, shard: int | None) -> None:
        """Start the decoders that a fetcher wants and that are neither running nor starting."""
        if self.local.decoders != "auto" or self._stop is not None:
            return
        status = self._fetcher_status(shard)
        if status is None or status.state == "finished":
            return
        coming = [
            child
            for child in self._decoders(shard)
            if child.due_s < math.inf or (child.alive and child.pid not in status.decoder_pids)
        ]
        for _ in range(status.decoders_wanted - len(status.decoder_pids) - len(coming)):
            decoders = self._decoders(shard)
            child = next((one for one in decoders if not one.alive and one.due_s == math.inf), None)
            if child is not None:  # one that has left
                child.retired = False
                child.policy.returns()
            else:
                child = self._make_child(decoder_name(shard, len(decoders)))
                self._children[child.name] = child
            self._start(child)

    def _on_exit(self, child: Child) -> None:
        self._selector.unregister(child.pidfd)
        exit_code = child.reap()
        logger.info("%s %s", child.name, how_it_ended(exit_code))
        if child.service == TRAINER:
            last = self._end_of_group(exit_code)
            if last is None:
                return
            child, exit_code = last, last.exit_code
        if self._stop is not None:
            if child.service == TRAINER:
                self._judge_stopped_trainer(child, exit_code)
            return
        if exit_code == USER_ERROR_EXIT_CODE:
            self._fail(USER_ERROR_EXIT_CODE, f"{child.name}: {child.user_error()}")
        elif exit_code == 0 and child.service == TRAINER:
            self._on_trainer_ended()
        elif exit_code == 0 and (status := self._fetcher_status(child.shard)) and status.state == "finished":
            pass  # everything is decoded
        elif exit_code == 0 and self._may_leave(child):
            child.retired = self.local.decoders == "auto"
            self.say(f"{child.name} left")
        elif exit_code and child.service == TRAINER and self._group.attempt is not None:
            reason = f": {error}" if (error := child.last_error()) else ""
            self._fail(TRY_AGAIN_EXIT_CODE, f"{child.name} {how_it_ended(exit_code)}{reason}; all nodes start again")
        elif exit_code and (reason := self._always_the_same(child, exit_code)):
            self._fail(FAILED_EXIT_CODE, reason)
        else:
            self._schedule(child, exit_code)

    def _end_of_group(self, exit_code: int) -> Child | None:
        """Return the trainer that caused the end of the group; None while others are alive."""
        trainers = self._trainers
        if any(child.alive for child in trainers):
            group_end_s = GROUP_END_S if self._group.attempt is None else NODE_GROUP_END_S
            patience_s = group_end_s if exit_code else STOP_TIMEOUT_S
            self._group_ends_s = min(self._group_ends_s, time.monotonic() + patience_s)
            return None
        self._group_ends_s = math.inf
        return self._children[cause_of({child.name: child.exit_code for child in trainers})]

    def _schedule(self, child: Child, exit_code: int) -> None:
        """Let a process start again after a pause, or all trainers together."""
        together = self._trainers if child.service == TRAINER else (child,)
        now_s = time.monotonic()
        pause_s = together[0].policy.died(now_s)
        for member in together:
            member.due_s = now_s + pause_s
        for trainer in together[1:]:
            trainer.policy.returns()  # a restart of the group is one restart, counted with the first trainer
        who = "all trainers start" if len(together) > 1 else "it starts"
        reason = f": {error}" if exit_code > 0 and (error := child.last_error()) else ""
        self.say(f"{child.name} {how_it_ended(exit_code)}{reason}; {who} again in {pause_s:g} s (log: {child.log})")

    def _always_the_same(self, child: Child, exit_code: int) -> str:
        """Return the reason to give up on a service that keeps failing without a step in between, or an empty text."""
        failure = self._failures.get(TRAINER if child.service == TRAINER else child.name)
        if failure is None:
            return ""
        status = read_status(self.run_dir, TRAINER, TrainerStatus)
        error = child.last_error()
        if not failure.again(exit_code, error, status.step if status is not None else 0):
            return ""
        return (
            f"{child.name}: failed {failure.times} times without a step in between, always with: {error};"
            f" its log has more: {child.log}"
        )

    def _fetcher_status(self, shard: int | None) -> FetcherStatus | None:
        """Return the status since the newest start of the fetcher."""
        status = read_status(shard_dir(self.run_dir, shard), FETCHER, FetcherStatus)
        return status if status is not None and status.pid == self._children[fetcher_name(shard)].pid else None

    def _may_leave(self, child: Child) -> bool:
        """Return True for a decoder that is not the last: it may be retired by hand, or because fewer are wanted."""
        others = self._decoders(child.shard)
        return child.service != FETCHER and any(other.alive or other.due_s < math.inf for other in others)

    def _trainer_state(self) -> str | None:
        status = read_status(self.run_dir, TRAINER, TrainerStatus)
        return status.state if status is not None and status.pid == self._children[TRAINER].pid else None

    def _on_trainer_ended(self) -> None:
        state = self._trainer_state()
        if state == "finished":
            self._exit_status, self._exit_code = "finished", 0
            everyone = tuple(self._children.values())
            # A fetcher that died while the trainer announced the end, and was restarted, waits for a trainer: stop it.
            self._begin_stop(StopStep(everyone, None, FAREWELL_S), *self._stop_stream())
        elif state == "stopped":
            self.say("the trainer was stopped from outside this run")
            self._interrupt()
        else:
            self._fail(FAILED_EXIT_CODE, f"trainer: it ended without having finished (its state: {state})")

    def _judge_stopped_trainer(self, trainer: Child, exit_code: int) -> None:
        """Check that the trainer, asked to stop, ended cleanly."""
        if self._exit_status != "interrupted":
            return  # The cause is recorded already.
        if exit_code == 0 and self._trainer_state() == "finished":
            self._exit_status, self._exit_code = "finished", 0
        elif exit_code == USER_ERROR_EXIT_CODE:
            self._fail(USER_ERROR_EXIT_CODE, f"{trainer.name}: {trainer.user_error()}")
        elif exit_code == -signal.SIGKILL:
            self.say(f"{trainer.name} was killed; the run resumes from its newest checkpoint")
        elif exit_code not in (0, -signal.SIGTERM):
            how = how_it_ended(exit_code)
            # Of several nodes, the others may have been killed.
            code = FAILED_EXIT_CODE if self._group.attempt is None else TRY_AGAIN_EXIT_CODE
            self._fail(code, f"{trainer.name}: {how} while it stopped; see {trainer.log}")

    def _on_signal(self, number: int) -> None:
        if number not in STOP_SIGNALS:
            return
        now_s = time.monotonic()
        if self._interrupted_s is None:
            self._interrupted_s = now_s
            if self._stop is None:
                self.say("stopping: the trainer writes a checkpoint first (Ctrl-C again kills it)")
                self._interrupt()
            elif self._exit_status == "finished":
                self._begin_stop(*self._stop_stream())
        elif number == signal.SIGINT and now_s - self._interrupted_s >= self.hurry_after_s:
            for child in self._children.values():
                child.kill()

    def _fail(self, exit_code: int, error: str) -> None:
        self._exit_status, self._exit_code, self._error = "failed", exit_code, error
        if self._stop is not None:
            return
        self.say(f"stopping after an error of {error.partition(':')[0]}")  # its text is shown at the end
        if exit_code == TRY_AGAIN_EXIT_CODE:
            # Trainers can't save without those of other nodes.
            others = (*self._of_service("decoder"), *self._of_service(FETCHER))
            self._begin_stop(StopStep(self._trainers, signal.SIGKILL), StopStep(others, signal.SIGTERM, NODE_END_S))
        else:
            self._begin_stop(StopStep(self._trainers, signal.SIGTERM), *self._stop_stream())

    def _interrupt(self) -> None:
        self._exit_status, self._exit_code = "interrupted", INTERRUPTED_EXIT_CODE
        self._begin_stop(StopStep(self._trainers, signal.SIGTERM), *self._stop_stream())

    def _stop_stream(self) -> tuple[StopStep, StopStep]:
        # Decoders first: they take their leave from a fetcher that still listens.
        decoders, fetchers = self._of_service("decoder"), self._of_service(FETCHER)
        return StopStep(decoders, signal.SIGTERM), StopStep(fetchers, signal.SIGTERM)

    def _begin_stop(self, *steps: StopStep) -> None:
        for child in self._children.values():
            child.due_s = math.inf
        self._stop = Stopping(steps)

    def _processes(self) -> Processes:
        restarts = dict.fromkeys(SERVICES, 0)
        for child in self._children.values():
            restarts[child.service] += child.policy.restarts
        pids = {child.name: child.pid for child in self._children.values() if child.alive}
        return Processes(pids, restarts, self._stop is not None)
