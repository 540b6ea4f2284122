"""One node from its start to its end: meets the others, runs its processes, and says how it ended."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from common.errors import TRY_AGAIN_EXIT_CODE, USER_ERROR_EXIT_CODE, BadInputError, TryAgainError
from common.locks import RunAttempt, RunLock, Wait, patience
from common.paths import CONFIG_FILE, INVENTORY_FOLDER, make_run_dir
from common.process import StopFlag
from common.status import TrainerStatus, read_status
from common.summary import FAILED_EXIT_CODE, build_summary, summary_lines, write_summary
from common.transport import StopRequested
from icestream.commands.checks import (
    check_before_start,
    check_device,
    imbalance_of_shards,
    refuse_data_folder,
    require_plan_of_checkpoint,
)
from icestream.commands.node.settings import build_of, node_config, require_inputs, require_same
from icestream.commands.node.shared_settings import SharedSettings
from services.config.root import Config, load_config, store_config
from services.config.settings import make_ranges
from services.fetcher.shared_folder import list_path
from services.supervisor.child import FETCHER, secrets_allowed, service_command, service_of
from services.supervisor.nodes.beats import Beats
from services.supervisor.nodes.failures import AttemptFailures
from services.supervisor.nodes.master import Master
from services.supervisor.nodes.meeting import NodePlace, end_of, find_attempt, gather, join, lock_shared, raise_end_of
from services.supervisor.nodes.node_watch import INTERRUPTED_EXIT_CODE, NodeEnding
from services.supervisor.nodes.note import NodeNote
from services.supervisor.nodes.notes import read_note
from services.supervisor.nodes.own_folder import claim_run_dir, require_shared, run_id
from services.supervisor.progress import Display, RunRecord, supervisor_log
from services.supervisor.supervisor import NodeGroup, Processes, SessionOutcome, Supervisor
from services.trainer.environment import RANKS_TIMEOUT_S
from workloads.base.checkpoint import newest_step

PORT_S = 10.0
"""Longest wait for the port of a former start, whose processes are just ending."""
FORMER_S = 30.0
"""The same for the end of a former start in the run directory, for which an engine's guard allows 20 s."""
SETTLE_S = 4.0
"""Time to learn why the trainers of all nodes have ended, from the node that ended first."""
SEEN_S = 60.0
"""Longest time until this machine sees a file as another one has written it (NFS)."""
SUM_S = 5.0
"""The same for the records of what was planned, at the end: other nodes have ended, and an engine is waiting."""
RECORD_S = 5.0
"""Longest time to record why the trainers have ended: an engine is waiting, and the file server may not answer."""
_POLL_S = 0.2


@dataclass(frozen=True)
class Node:
    """This node, for its supervisor."""

    group: NodeGroup
    beats: Beats
    is_stopped: Callable[[], bool]
    """True once a signal asked this process to stop, before its supervisor took over the signals."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of all its processes."""
        return self.group.attempt.environment

    def ending(self) -> tuple[int, str] | None:
        """Exit code and reason, if it has to end because of another node, or of a signal that came early."""
        if self.is_stopped():
            return INTERRUPTED_EXIT_CODE, "asked before the start"
        ending = self.beats.ending
        return (ending.exit_code, ending.text) if ending is not None else None

    def end_after_trainers(self, exit_code: int, how: str, error: str) -> tuple[int, str]:
        """Exit code and reason, see RunningNode: all nodes start again, unless each start ends with this error."""
        how = f"{how}: {error}" if error else how
        if times := self._failures(exit_code, error):
            return FAILED_EXIT_CODE, f"{how}; so did {times} starts in a row, without a checkpoint in between"
        return TRY_AGAIN_EXIT_CODE, f"{how}; start all nodes again"

    def _failures(self, exit_code: int, error: str) -> int:
        """Number of starts that ended so; 0 while all start again, and if the shared folder does not answer."""
        attempt, found = self.group.attempt, [0]

        def record() -> None:
            with contextlib.suppress(OSError, TryAgainError):
                found[0] = AttemptFailures(attempt).times(exit_code, error, newest_step(attempt.shared))

        thread = threading.Thread(target=record, name="failures", daemon=True)
        thread.start()
        thread.join(RECORD_S)
        return found[0]


@dataclass(frozen=True)
class NodeSession:
    """Session of node ``node`` of ``nodes``."""

    node: int
    nodes: int
    master: Master
    shared: Path
    run_dir: Path
    toml: Path | None
    assignments: Sequence[str]
    flags: Mapping[str, Any]
    stop: StopFlag

    def run(self) -> int:
        """Run to the end; the exit code. Raises IcestreamError for what a user, or another start, can mend."""
        if self.node >= self.nodes:
            raise BadInputError(f"--node {self.node}: of --nodes {self.nodes} the last one is {self.nodes - 1}")
        self.master.require_known()
        require_shared(self.shared, self.run_dir)
        make_run_dir(self.run_dir)
        settings = SharedSettings(self.shared)
        try:
            lock = RunLock(self.run_dir, "run", "icestream node", self._until_former_ends())
            with lock, self._met(settings) as (config, attempt, beats):
                exit_code, text = self._until_the_end(config, attempt, beats)
                if exit_code == USER_ERROR_EXIT_CODE:
                    settings.put_back()
                beats.close(exit_code, text)
                return exit_code
        except StopRequested:
            self._say("stopped before the start")
            return INTERRUPTED_EXIT_CODE

    # -------------------------------------------------------------- before the start

    def _until_former_ends(self) -> Wait:
        patient, is_told = patience(FORMER_S), False

        def wait() -> bool:
            nonlocal is_told
            if self.stop:
                raise StopRequested
            if not is_told:
                self._say(f"waiting for the end of a former start in {self.run_dir}")
            is_told = True
            return patient()

        return wait

    @contextlib.contextmanager
    def _met(self, settings: SharedSettings) -> Iterator[tuple[Config, RunAttempt, Beats]]:
        """Configuration of the run, and the attempt in which all nodes have met. An error is told to the others."""
        # A mistake in the settings is told before this node meets the others.
        load_config(self._stored, toml=self.toml, assignments=self.assignments, flags=self.flags)
        place = NodePlace(
            self.node,
            self.nodes,
            self.shared,
            self.master,
            RANKS_TIMEOUT_S,
            lambda: bool(self.stop),
            self._say,
            self.run_dir.absolute(),
        )
        with contextlib.ExitStack() as stack:
            if self.node == 0:
                if (lock := lock_shared(place)) is not None:
                    stack.callback(lock.close)
                with self.master.listen(PORT_S):
                    attempt, beats = self._gathered(place, settings)
            else:
                first = find_attempt(place)
                attempt, beats = join(place, first, lambda: self._check(first))
            try:
                yield load_config(self.run_dir, environment={}), attempt, beats
            except BaseException as error:
                beats.close(*end_of(error))
                raise

    def _gathered(self, place: NodePlace, settings: SharedSettings) -> tuple[RunAttempt, Beats]:
        try:
            return gather(place, lambda attempt: self._prepare(attempt, settings))
        except BadInputError:  # perhaps of another node
            settings.put_back()
            raise

    @property
    def _stored(self) -> Path | dict[str, Any]:
        """Configuration of the run, if it has begun."""
        return self.shared if (self.shared / CONFIG_FILE).exists() else {}

    def _prepare(self, attempt: RunAttempt, settings: SharedSettings) -> tuple[str, str]:
        """Settings of the run, from those of node 0: their digest, and the build. Raises BadInputError."""
        former = load_config(self.shared, environment={}) if self._stored else None
        config = node_config(self.shared, self.nodes, self.toml, self.assignments, self.flags)
        ranges = make_ranges(config.input, config.fetcher.ranges, config.fetcher.done)
        is_listed = all(list_path(self.shared / INVENTORY_FOLDER, one).exists() for one in ranges)
        check_before_start(self.shared, config, lists_inputs=not is_listed)
        refuse_data_folder(self.run_dir, config)
        if former is not None:
            require_plan_of_checkpoint(self.shared, former.model_dump(mode="json"), config)
        with attempt.publishing():
            claim_run_dir(self.run_dir, run_id(self.shared, begins=True), self.shared)
        stored = settings.replace(config, attempt)
        store_config(self.run_dir, config)
        return _digest(stored), build_of(config)

    def _check(self, first: NodeNote) -> None:
        """Raise BadInputError if this node doesn't fit to node 0."""
        until_s = time.monotonic() + SEEN_S
        while self._stored_digest() != first.settings:
            if self.stop:
                raise StopRequested
            node_0 = read_note(self.shared, 0)
            raise_end_of(node_0, first.attempt)  # it has put back the former settings, perhaps
            if node_0 is not None and node_0.token != first.token:
                raise TryAgainError(f"{first} is gone")
            if time.monotonic() > until_s:
                raise BadInputError(f"--shared {self.shared}: the settings of node 0 are not seen for {SEEN_S:g} s")
            time.sleep(_POLL_S)
        config = node_config(self.shared, self.nodes, self.toml, self.assignments, self.flags)
        require_same(load_config(self.shared, environment={}), config)
        if build_of(config) != first.build:
            raise BadInputError(f"{build_of(config)} here, but node 0 has {first.build}: install the same everywhere")
        check_device(config.trainer.device)
        require_inputs(config)
        claim_run_dir(self.run_dir, run_id(self.shared, begins=False), self.shared)
        store_config(self.run_dir, config)

    def _stored_digest(self) -> str:
        try:
            return _digest((self.shared / CONFIG_FILE).read_bytes())
        except FileNotFoundError:
            return ""

    # -------------------------------------------------------------- run

    def _until_the_end(self, config: Config, attempt: RunAttempt, beats: Beats) -> tuple[int, str]:
        """Exit code and text of this node, which runs now."""
        if self.stop:
            raise StopRequested
        each = config.stream.shards // self.nodes
        shards = range(self.node * each, (self.node + 1) * each) if config.stream.shards > 1 else range(0)
        of_shards = shard_words(shards, config.stream.shards)
        self._say(f"attempt {attempt.number}, {of_shards}; logs in {self.run_dir / 'logs'}, results in {self.shared}")
        outcome = self._supervise(config, shards, attempt, beats)
        reason = None
        if outcome.exit_code in (TRY_AGAIN_EXIT_CODE, INTERRUPTED_EXIT_CODE):
            reason = beats.settle(SETTLE_S)
        return self._finish(config, attempt, outcome, reason)

    def _supervise(self, config: Config, shards: Sequence[int], attempt: RunAttempt, beats: Beats) -> SessionOutcome:
        def command_for(name: str) -> list[str]:
            command = service_command(name, self.run_dir, len(shards), config.trainer.model)
            is_fetcher = shards and service_of(name) == FETCHER
            return [*command, "--inventory", str(self.shared / INVENTORY_FOLDER)] if is_fetcher else command

        group = NodeGroup(config.local.trainers, self.node, self.nodes, self.master.host, self.master.port, attempt)
        with supervisor_log(self.run_dir) as log, Display(self.run_dir, Console()) as display:

            def say(text: str) -> None:
                log.info("%s", text)
                display.say(text)

            record = RunRecord(self.run_dir)

            def watch(processes: Processes) -> None:
                record.watch(processes)
                display.watch(processes)

            supervisor = Supervisor(
                self.run_dir,
                config.local,
                command_for,
                shards=shards,
                node=Node(group, beats, lambda: bool(self.stop)),
                secrets=secrets_allowed(config),
                watch=watch,
                say=say,
            )
            outcome = supervisor.run()
            log.info("%s, exit code %d", outcome.exit_status, outcome.exit_code)
            record.ended(outcome)
            return outcome

    def _finish(
        self, config: Config, attempt: RunAttempt, outcome: SessionOutcome, reason: NodeEnding | None
    ) -> tuple[int, str]:
        """Exit code and text; node 0 adds up what all nodes have trained, and writes the summary."""
        if reason is not None and reason.exit_code == outcome.exit_code == INTERRUPTED_EXIT_CODE:
            reason = None  # all were stopped, which is no failure
        exit_code = reason.exit_code if reason is not None else outcome.exit_code
        error = reason.text if reason is not None else outcome.error
        exit_status = outcome.exit_status if reason is None else "failed"
        if self.node == 0:
            status = read_status(self.run_dir, "trainer", TrainerStatus)
            summary = build_summary(
                status,
                exit_status=exit_status,
                exit_code=exit_code,
                seconds=outcome.seconds,
                restarts=outcome.restarts,
                error=error,
                imbalance=self._imbalance(config, status) if exit_status == "finished" else "",
            )
            with contextlib.suppress(TryAgainError), attempt.publishing():  # of a later one it would be the wrong one
                write_summary(self.shared, summary)
            exit_code, error = summary.exit_code, summary.error
            click.echo("\n".join(summary_lines(summary)))
        if error:
            click.secho(f"Error: {error}", err=True, fg="red")
        self._say(f"exit code {exit_code}")
        return exit_code, error or ""

    def _imbalance(self, config: Config, status: TrainerStatus | None) -> str:
        """Sum over all shards that is wrong, in words."""
        until_s = time.monotonic() + SUM_S
        while found := imbalance_of_shards(self.shared / INVENTORY_FOLDER, config, status):
            if self.nodes == 1 or time.monotonic() > until_s:
                break
            time.sleep(_POLL_S)
        return found

    def _say(self, text: str) -> None:
        click.echo(f"node {self.node} of {self.nodes}: {text}")


def shard_words(shards: Sequence[int], number: int) -> str:
    """Shards of a node, of ``number`` in all, for people. Empty: a run without shards."""
    if not shards:
        return "the whole stream"
    which = f"shard {shards[0]}" if len(shards) == 1 else f"shards {shards[0]} to {shards[-1]}"
    return f"{which} of {number}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
