"""A node of a run on several machines, which torchrun starts: it meets the others, runs its processes, says its end."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from common import paths
from common.atomic_file import OWNER_ONLY, replace_file
from common.errors import TRY_AGAIN_EXIT_CODE, USER_ERROR_EXIT_CODE, BadInputError, IcestreamError, TryAgainError
from common.locks import LOCKS_FOLDER, RunAttempt, RunLock, Wait, begin_attempt, holder_of, patience
from common.plan import plan_hash
from common.process import StopFlag
from common.status import TrainerStatus, read_status
from common.summary import summary_lines, write_summary
from common.text import shown
from common.transport import StopRequested
from icestream.commands import checks
from icestream.commands.run_session import resolved_config, summary_of, supervise, with_absolute_paths
from services.config.root import Config, leaves, load_config, store_config
from services.config.settings import make_ranges
from services.fetcher.shared_folder import list_path
from services.supervisor import supervisor
from services.supervisor.child import FETCHER, service_command, service_of
from services.supervisor.meeting import Meeting, NodeNote, NodePlace
from workloads.base.checkpoint import CHECKPOINT_FOLDER, STEP_NAME, newest_step

SHARED_BRANCHES = ("input", "workload", "seed", "epochs", "source", "stream", "trainer")
"""Branches of the configuration that must be the same on all nodes; the others are of a machine."""
OF_MACHINE = ("trainer.device", "trainer.threads")
"""Settings in those branches that may differ."""
OF_LISTS = ("fetcher.ranges", "fetcher.done")
"""Settings of other branches that determine the lists of files, which node 0 makes for all."""
FORMER_S = 30.0
"""Longest wait for the end of a former start, which torchrun kills after as long."""
SEEN_S = 60.0
"""Longest time until this machine sees a file as another one has written it (NFS)."""
SUM_S = 5.0
"""The same for the records of what was planned, at the end: other nodes have ended."""
_POLL_S = 0.2
_RECORDS = ("planned-*", "begun-*", "bad-*", "epochs-*")


@dataclass(frozen=True)
class NodeSession:
    """Session of the node at ``place``. ``shared``: folder of the results, ``run_dir``: on this machine's own disk."""

    place: NodePlace
    shared: Path
    run_dir: Path
    toml: Path | None
    assignments: Sequence[str]
    flags: Mapping[str, Any]
    stop: StopFlag

    def run(self) -> int:
        """Run to the end; return the exit code. Raises IcestreamError for what a user, or another start, can mend."""
        if self.place.launch == "none":
            raise BadInputError("give torchrun a name of this launch, --rdzv-id: another one at each, or an engine's")
        require_shared(self.shared, self.run_dir)
        # A mistake in the settings is told before this node meets the others.
        config = load_config(self._stored, toml=self.toml, assignments=self.assignments, flags=self.flags)
        nodes = checks.usable_nodes(config.stream, self.place.nodes, config.local.trainers)
        paths.make_run_dir(self.run_dir)
        try:
            with RunLock(self.run_dir, "run", "icestream run", self._until_former_ends(self.run_dir)):
                if self.place.node == 0:
                    return self._first(nodes)
                if self.place.node < nodes:
                    attempt = self._meeting.join(nodes, lambda note: self._check(note, nodes))
                    return self._until_the_end(load_config(self.run_dir, environment={}), attempt, nodes)[0]
                return self._spare(nodes)
        except StopRequested:
            self._say("stopped before the start")
            return supervisor.INTERRUPTED_EXIT_CODE

    # -------------------------------------------------------------- before the start

    def _first(self, nodes: int) -> int:
        """Run node 0, which prepares the run for all, and adds up what they have trained."""
        with self._lock_of_shared():
            attempt = begin_attempt(self.shared)
            for former in (self.shared / LOCKS_FOLDER).glob(f"{supervisor.RANKS_FILES}*"):
                former.unlink(missing_ok=True)
            settings = SharedSettings(self.shared, attempt)
            note, ended = self._note(attempt, nodes), threading.Event()
            try:
                config = self._prepare(settings, nodes)
                note = note.model_copy(update={"settings": settings.digest(), "build": build_of(config)})
                threading.Thread(target=self._meeting.beat, args=(ended,), name="beat", daemon=True).start()
                self._meeting.gather(attempt, note)
                exit_code, text = self._until_the_end(config, attempt, nodes)
            except StopRequested:
                exit_code, text = supervisor.INTERRUPTED_EXIT_CODE, "stopped before the start"
            except IcestreamError as error:
                is_mistake = not isinstance(error, TryAgainError)
                exit_code, text = USER_ERROR_EXIT_CODE if is_mistake else TRY_AGAIN_EXIT_CODE, str(error)
                click.secho(f"Error: {text}", err=True, fg="red")
            ended.set()
            if exit_code == USER_ERROR_EXIT_CODE:
                settings.put_back()
            with contextlib.suppress(TryAgainError):  # a later attempt has a note of its own
                end = {"state": "ended", "exit_code": exit_code, "text": text}
                self._meeting.tell(attempt, note.model_copy(update=end))
            return exit_code

    def _spare(self, nodes: int) -> int:
        """Wait as a node for which there are no shards, until the run ends or torchrun starts all again."""
        attempt = self._meeting.join(nodes, lambda note: self._check(note, nodes))
        self._say(f"a spare one: {nodes} of {self.place.nodes} nodes can share the run's shards evenly")
        return self._meeting.until_the_end(attempt).exit_code

    @property
    def _meeting(self) -> Meeting:
        return Meeting(self.place, self.shared, lambda: bool(self.stop), self._say)

    def _until_former_ends(self, folder: Path) -> Wait:
        patient, is_told = patience(FORMER_S), False

        def wait() -> bool:
            nonlocal is_told
            if self.stop:
                raise StopRequested
            if not is_told:
                self._say(f"waiting for the end of a former start in {folder}")
            is_told = True
            return patient()

        return wait

    @contextlib.contextmanager
    def _lock_of_shared(self) -> Iterator[None]:
        """Hold the lock of the shared folder, which refuses a second run.

        A start of this launch that holds it still is frozen, or cut off: torchrun has given it up, and the number of
        the attempt keeps it from writing.
        """
        what = f"icestream run, launch {self.place.launch}"
        wait = self._until_former_ends(self.shared)
        try:
            lock = RunLock(self.shared, "run", what, wait)
        except BadInputError:
            holder = holder_of(self.shared, "run")
            if holder is None or holder.what != what:
                raise
            self._say(f"{holder} is given up")
            yield
            return
        with lock:
            yield

    @property
    def _stored(self) -> Path | dict[str, Any]:
        """Configuration of the run, if it has begun."""
        return self.shared if (self.shared / paths.CONFIG_FILE).exists() else {}

    def _config(self, nodes: int) -> Config:
        """Return this node's configuration, from that of the run and what was given here. Raises BadInputError."""
        resolved = resolved_config(self.shared, False, self.toml, self.assignments, self.flags, nodes)
        config = with_absolute_paths(resolved)
        if config.outputs.destination:
            raise BadInputError(
                "outputs.destination: results of several nodes are in --shared; copy them from there with"
                " `icestream outputs --run-dir SHARED`"
            )
        return config

    def _prepare(self, settings: SharedSettings, nodes: int) -> Config:
        """Store the settings of the run, which are those of node 0, and return them. Raises BadInputError."""
        former = load_config(self.shared, environment={}) if self._stored else None
        config = self._config(nodes)
        ranges = make_ranges(config.input, config.fetcher.ranges, config.fetcher.done)
        is_listed = all(list_path(self.shared / paths.INVENTORY_FOLDER, one).exists() for one in ranges)
        checks.check_before_start(self.shared, config, lists_inputs=not is_listed)
        checks.refuse_data_folder(self.run_dir, config)
        if former is not None:
            checks.require_plan_of_checkpoint(self.shared, former.model_dump(mode="json"), config)
        claim_run_dir(self.run_dir, run_id(self.shared, begins=True), self.shared)
        settings.replace(config)
        store_config(self.run_dir, config)
        return config

    def _note(self, attempt: RunAttempt, used: int) -> NodeNote:
        return NodeNote(
            attempt=attempt.number,
            state="gathering",
            launch=self.place.launch,
            port=self.place.port,
            nodes=self.place.nodes,
            used=used,
            host=os.uname().nodename,
            pid=os.getpid(),
            since=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            run_dir=str(self.run_dir.absolute()),
        )

    def _check(self, note: NodeNote, nodes: int) -> None:
        """Raise BadInputError if this node doesn't fit to node 0; take over its settings."""
        settings = SharedSettings(self.shared, RunAttempt(self.shared, note.attempt))
        until_s = time.monotonic() + SEEN_S
        while settings.digest() != note.settings:
            if self.stop:
                raise StopRequested
            if time.monotonic() > until_s:
                raise TryAgainError(f"--shared {self.shared}: the settings of node 0 are not seen for {SEEN_S:g} s")
            time.sleep(_POLL_S)
        config = self._config(nodes)
        require_same(load_config(self.shared, environment={}), config)
        if build_of(config) != note.build:
            raise BadInputError(f"{build_of(config)} here, but node 0 has {note.build}: install the same everywhere")
        checks.check_device(config.trainer.device)
        require_inputs(config)
        claim_run_dir(self.run_dir, run_id(self.shared, begins=False), self.shared)
        store_config(self.run_dir, config)

    # -------------------------------------------------------------- run

    def _until_the_end(self, config: Config, attempt: RunAttempt, nodes: int) -> tuple[int, str]:
        """Run this node's processes; return its exit code, and the reason of an error."""
        if self.stop:
            raise StopRequested
        node = self.place.node
        shards = config.stream.shards_of_node(node, nodes)
        of_shards = "the whole stream"
        if shards:
            numbers = f"shard {shards[0]}" if len(shards) == 1 else f"shards {shards[0]} to {shards[-1]}"
            of_shards = f"{numbers} of {config.stream.shards}"
        self._say(f"attempt {attempt.number}, {of_shards}; logs in {self.run_dir / 'logs'}, results in {self.shared}")

        def command_for(name: str) -> list[str]:
            command = service_command(name, self.run_dir, len(shards), config.trainer.model)
            is_fetcher = shards and service_of(name) == FETCHER
            return [*command, "--inventory", str(self.shared / paths.INVENTORY_FOLDER)] if is_fetcher else command

        group = supervisor.TrainerGroup(self.run_dir, config.local.trainers, node, nodes, self.place.address, attempt)
        return self._finish(config, attempt, supervise(self.run_dir, config, command_for, shards, group))

    def _finish(self, config: Config, attempt: RunAttempt, outcome: supervisor.SessionOutcome) -> tuple[int, str]:
        """Return exit code and reason; node 0 adds up what all nodes have trained, and writes the summary."""
        exit_code, error = outcome.exit_code, outcome.error
        if self.place.node == 0:
            status = read_status(self.run_dir, "trainer", TrainerStatus)
            imbalance = self._imbalance(config, status) if outcome.exit_status == "finished" else ""
            summary = summary_of(outcome, config, status, imbalance)
            with contextlib.suppress(TryAgainError), attempt.publishing():  # of a later one it would be the wrong one
                write_summary(self.shared, summary)
            exit_code, error = summary.exit_code, summary.error
            click.echo("\n".join(summary_lines(summary)))
        if error:
            click.secho(f"Error: {error}", err=True, fg="red")
        self._say(f"exit code {exit_code}")
        return exit_code, error or ""

    def _imbalance(self, config: Config, status: TrainerStatus | None) -> str:
        """Return the sum over all shards that is wrong, in words."""
        until_s = time.monotonic() + SUM_S
        while found := checks.imbalance_of_shards(self.shared / paths.INVENTORY_FOLDER, config, status):
            if self.place.nodes == 1 or time.monotonic() > until_s:
                break
            time.sleep(_POLL_S)
        return found

    def _say(self, text: str) -> None:
        click.echo(f"node {self.place.node} of {self.place.nodes}: {text}")


# ------------------------------------------------------------------ folders


def require_shared(shared: Path, run_dir: Path) -> None:
    """Make the shared folder if it is missing. Raises BadInputError if nothing can be written there, if others can
    change what is there, or if it is the run directory."""
    paths.own_files_only()
    if shared.resolve() == run_dir.resolve():
        raise BadInputError(
            f"--run-dir {run_dir} is --shared, too: it must be a folder of each node, on its machine's own disk"
        )
    trial = shared / f".trial-{secrets.token_hex(4)}"
    try:
        shared.mkdir(mode=paths.RUN_DIR_MODE, parents=True, exist_ok=True)
        paths.require_private(shared, "--shared")
        os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY))
        trial.unlink()
    except OSError as error:
        raise BadInputError(
            f"--shared {shared}: can't write there ({error.strerror}); choose a folder that all nodes can write to"
        ) from None


def run_id(shared: Path, *, begins: bool) -> str:
    """Return the random name of the run in the shared folder; ``begins``: make one if there is none yet."""
    path = shared / paths.RUN_ID_FILE
    if begins and not path.exists():
        replace_file(path, secrets.token_hex(8), durable=True)
    return path.read_text()


def claim_run_dir(run_dir: Path, run: str, shared: Path) -> None:
    """Note that the directory is of this run. Raises BadInputError if it is of another one: nothing is deleted."""
    note = run_dir / paths.NODE_FILE
    if note.exists():
        if json.loads(note.read_text())["run"] != run:
            raise BadInputError(
                f"{run_dir}: of a node of another run (another --shared); delete it, or choose another --run-dir"
            )
    elif (run_dir / paths.CONFIG_FILE).exists():
        raise BadInputError(f"{run_dir}: a run of one machine, without --shared; choose another --run-dir")
    replace_file(note, json.dumps({"run": run, "shared": str(shared)}), durable=False)


# ------------------------------------------------------------------ settings


@dataclass
class SharedSettings:
    """Settings of the run in the shared folder: node 0 replaces them at each start, unless that is refused."""

    shared: Path
    attempt: RunAttempt
    _former: bytes | None = None
    _step: int | None = None
    """Step of the newest checkpoint when they were replaced; None: they were not."""

    @property
    def _path(self) -> Path:
        return self.shared / paths.CONFIG_FILE

    def digest(self) -> str:
        """Return what tells these settings from others; empty if there are none."""
        try:
            return hashlib.blake2b(self._path.read_bytes(), digest_size=16).hexdigest()
        except FileNotFoundError:
            return ""

    def replace(self, config: Config) -> None:
        """Store these settings for all nodes. Raises TryAgainError."""
        with self.attempt.publishing():
            self._former = self._path.read_bytes() if self._path.exists() else None
            self._step = newest_step(self.shared)
            if not self._step:
                self._forget()
            store_config(self.shared, config)

    def put_back(self) -> None:
        """Store the former settings again, if nothing was trained with those of this start: it was refused.

        A mistyped input, or a workload detected in it, would else be that of all later starts.
        """
        if self._step is None:
            return
        with contextlib.suppress(TryAgainError), self.attempt.publishing():
            if newest_step(self.shared) != self._step:
                return
            if self._former is None:
                self._path.unlink(missing_ok=True)
            else:
                replace_file(self._path, self._former, durable=True)

    def _forget(self) -> None:
        """Delete what the shards have noted of files and blocks, and a checkpoint before the first step, which has the
        plan of its start: nothing is trained, and the inputs may be others."""
        records = [path for pattern in _RECORDS for path in (self.shared / paths.INVENTORY_FOLDER).glob(pattern)]
        found = (self.shared / CHECKPOINT_FOLDER).glob("step-*")
        for path in (*records, *(path for path in found if STEP_NAME.fullmatch(path.name))):
            path.unlink(missing_ok=True)


def require_inputs(config: Config) -> None:
    """Raise BadInputError if a local input is not seen by this machine: all its files would count as bad ones."""
    for text in config.input:
        if "://" in text or text.startswith("@"):
            continue
        folder = Path(text)
        while glob.has_magic(str(folder)):
            folder = folder.parent
        if not folder.exists():
            raise BadInputError(
                f"{shown(text)}: {shown(str(folder))} is not on this machine; all nodes need the inputs"
            )


def require_same(first: Config, mine: Config) -> None:
    """Raise BadInputError that names a setting of this node that is not that of node 0."""
    theirs, own = _of_run(first), _of_run(mine)
    for key in sorted(theirs.keys() | own.keys()):
        if theirs.get(key) != own.get(key):
            raise BadInputError(
                f"{key} = {shown(str(own.get(key)))}, but node 0 has {shown(str(theirs.get(key)))}: give all nodes the"
                " same settings"
            )
    if first.local.trainers != mine.local.trainers:
        raise BadInputError(
            f"{mine.local.trainers} trainers here, but {first.local.trainers} on node 0: give all nodes the same number"
        )


def build_of(config: Config) -> str:
    """Return the version of icestream, and what it makes of the plan: code may differ where settings don't."""
    return f"icestream {version('icestream')}, plan {plan_hash(config.stored_workload(), config.stream, config.seed)}"


def _of_run(config: Config) -> dict[str, Any]:
    tree = config.model_dump(mode="json", include={*SHARED_BRANCHES, "fetcher"})
    return {
        key: value
        for key, value in leaves(tree)
        if key not in OF_MACHINE and (key in OF_LISTS or not key.startswith("fetcher."))
    }
