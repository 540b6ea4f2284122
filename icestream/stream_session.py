"""The session of one stream: its settings, its saved state, errors in Python's words, processes and connection."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from pydantic import ValidationError

from common.errors import USER_ERROR_EXIT_CODE, BadInputError
from common.files.inputs import expand, local_path
from common.files.local import file_kind
from common.files.parquet.footer import DamagedFooter, parse_footer
from common.files.remotes import Remotes
from common.locks import RunLock
from common.options import Paths, given_inputs, given_path
from common.own_code import OWN_PATH_VARIABLE, folder_of
from common.paths import CONFIG_FILE, make_run_dir
from common.plan import plan_hash
from common.process import python_command
from common.run_words import bottleneck
from common.schema import EventSchema
from common.slow_progress import SlowProgress
from common.status import read_fetchers
from common.text import without_secrets
from common.transport import StopRequested
from icestream.commands.checks import check_before_start
from icestream.run_config import load_run_config
from icestream.verbs import in_python
from services.config.root import Config, store_config
from services.config.settings import LocalConfig
from services.supervisor.child import LOGS_FOLDER, Child, RestartPolicy, how_it_ended
from services.trainer.agreement import Agreement
from services.trainer.checks import OF_THE_STREAM, changes_of_plan
from services.trainer.environment import RankPlace
from services.trainer.feed import Feed
from services.trainer.position import StreamPosition, read_position
from services.trainer.ranks import Ranks
from workloads.registry import NO_MODEL

logger = logging.getLogger("icestream")

FORMAT = 1
_OF_OTHERS = ("trainer.", "outputs.", "local.trainers")
_NO_FOLDER = "/nonexistent/temporary"
"""Stands for the temporary folder that is made with the first batch."""
_OTHER_INPUTS = "(its inputs were others): use the same files to continue it"
_LOOK_S = 0.1
"""Pause between two looks at the process."""
_SILENCE_S = 10.0
"""Wait for data after which the log says why."""
_STOP_S = 30.0


def stream_config(
    inputs: Paths | None,
    *,
    run_dir: Path | None,
    config: str | PathLike[str] | None,
    settings: Mapping[str, object],
    flags: Mapping[str, object],
) -> Config:
    """Return the configuration of a stream. Raises BadInputError.

    ``run_dir``: folder whose stored settings are the defaults. ``settings`` and ``flags``: values by dotted key, None
    for one that is not given.
    """
    for key in settings:
        if key == "epochs":
            raise BadInputError("settings has epochs: a stream has no end, and each loop over it ends with an epoch")
        if key.startswith(_OF_OTHERS):
            raise BadInputError(f"settings has {key}, which has no effect here: your own loop is the trainer")
    given_flags = {key: value for key, value in flags.items() if value is not None}
    if inputs is not None:
        given_flags["input"] = given_inputs(inputs, "inputs")
        if not given_flags["input"]:
            raise BadInputError(
                "inputs has no path in it (a generator gives its paths once, and a glob may match none): name files,"
                " directories, globs or URLs"
            )
    if twice := sorted(settings.keys() & given_flags):
        raise BadInputError(f"settings has {', '.join(twice)}, which is an argument of its own, too: give it once")
    given = {**settings, **given_flags, "epochs": 0, "trainer.model": NO_MODEL}
    stored: Path | dict[str, Any] = run_dir if run_dir is not None and run_dir.is_dir() else {}
    if isinstance(stored, Path):
        with suppress(OSError, ValueError, KeyError, TypeError):
            model = json.loads((stored / CONFIG_FILE).read_text())["trainer"]["model"]
            if model != NO_MODEL:
                what = f"{stored} is the run directory of a training ({model})"
                raise BadInputError(f"{what}: name another folder as run_dir")
    toml = given_path(config, "config") if config is not None else None
    resolved = load_run_config(stored, toml=toml, assignments=(), flags=given)
    if resolved.stream.shards > 1 and not resolved.stream.is_mixed:
        raise BadInputError(f"stream.shards = {resolved.stream.shards}: a stream in Python has one; leave it out")
    if not resolved.input:
        raise BadInputError("no input given: name files, directories, globs or URLs")
    is_new = run_dir is None or not (run_dir / CONFIG_FILE).exists()
    check_before_start(run_dir or Path(_NO_FOLDER), resolved, lists_inputs=is_new)
    return resolved


def rows_of_local_files(config: Config) -> int | None:
    """Return the rows of all inputs by their footers; None if one of them is no local Parquet file. Raises
    BadInputError."""
    if config.fetcher.ranges or any(local_path(text.removeprefix("file://")) is None for text in config.input):
        return None
    with Remotes(config.remote_access()) as remotes:
        files = expand(config.input, remotes)
    rows = 0
    with SlowProgress("footers", len(files)) as progress:
        for file in files:
            with suppress(BadInputError, DamagedFooter, OSError):  # it will be quarantined, with the reason
                if file_kind(Path(file.url)) != "Parquet":
                    return None
                rows += parse_footer(Path(file.url)).rows
            progress.advance(1)
    return rows


HANDED_OUT = "handed_out"
"""Key of the state after all batches that were handed out, in one after an earlier batch."""


class StreamState(NamedTuple):
    """Place in a stream: all that is needed to continue there."""

    position: StreamPosition
    epoch: int
    """Number of the epoch to continue in."""
    skip: int = 0
    """Events of the feed's next batch that were handed out."""
    of_loop: int = 0
    """Events of a loop with a limit that were handed out."""
    left_out: int = 0
    """Events that were left out at the ends of epochs."""

    def saved(self, config: Config) -> dict[str, Any]:
        """Return the state as numbers and texts."""
        of_plan = json.loads(config.own_json())
        return {
            "format": FORMAT,
            "plan_hash": hash_of(config),
            "epoch": self.epoch,
            "skip": self.skip,
            "of_loop": self.of_loop,
            "left_out": self.left_out,
            "position": self.position.model_dump_json(),
            "settings": without_secrets(json.dumps({name: of_plan[name] for name in OF_THE_STREAM})),
        }

    @classmethod
    def read(cls, state: Mapping[str, Any], config: Config) -> Self:
        """Return the state that saved() gave. Raises BadInputError if it is of another stream, or another version."""
        try:
            if state["format"] != FORMAT:
                raise BadInputError(f"the state of the stream has format {state['format']}; expected {FORMAT}")
            if state["plan_hash"] != hash_of(config):
                changes = changes_of_plan(state["settings"], config.own_json()) or "of another version of icestream"
                raise BadInputError(f"the state is of another stream ({changes}): use the same settings to continue it")
            numbers = [int(state[name]) for name in ("epoch", "skip", "of_loop", "left_out")]
            read = cls(read_position(state["position"]), *numbers)
            if min(numbers) < 0 or len(read.position.shards) != config.stream.shards:
                raise ValueError
            return read
        except (KeyError, TypeError, ValueError, AttributeError, ValidationError):
            raise BadInputError("not the state of a stream: expected what stream.state_dict() returned") from None


def hash_of(config: Config) -> str:
    """Return the plan hash of a stream."""
    return plan_hash(config.stored_workload(), config.stream, config.seed)


# ------------------------------------------------------------------ processes and connection


class Session:
    """The services of a stream, and the feed that is connected to them."""

    def __init__(
        self, config: Config, schema: EventSchema, device: torch.device, run_dir: Path | None, place: RankPlace | None
    ) -> None:
        """``run_dir``: None for a temporary one. ``place``: of this process among several ranks."""
        self._config = config
        self._schema = schema
        self._device = device
        self._kept_dir = run_dir
        self._place = place
        self._owner = os.getpid()
        self._ranks: Ranks | None = None
        self._lock: RunLock | None = None
        self._services: Services | None = None
        self._feed: Feed | None = None

    @property
    def run_dir(self) -> Path | None:
        """Folder of the services; None while there is no temporary one."""
        return self._services.run_dir if self._services is not None else self._kept_dir

    def joined(self) -> tuple[Feed, Services]:
        """Return feed and services, started if necessary. Raises BadInputError."""
        if os.getpid() != self._owner:
            raise BadInputError("a stream can't be used in a forked child of its process: make one there")
        if self._feed is not None and self._services is not None:
            return self._feed, self._services
        self._ranks = ranks = self._ranks or self._joined_ranks()
        if self._services is None:
            try:
                self._start(ranks)
            except OSError as error:
                self.close()
                where = f"run_dir = {str(self._kept_dir)!r}" if self._kept_dir else "the temporary folder (TMPDIR)"
                raise BadInputError(f"{where} can't be used: {error}") from None
            except BaseException:  # Ctrl-C, too: what has begun must not be in the way of the next try
                self.close()
                raise
        services = self._services
        assert services is not None
        try:
            feed = Feed(
                services.run_dir,
                self._schema,
                self._config.stream,
                self._config.transport,
                device=self._device,
                columns=[column.name for column in self._schema.columns],
                audit=False,
                stopped=services.ended,
                rank=ranks.rank,
                ranks=ranks.size,
                agreement=Agreement(ranks, services.ended),
                remedy=_OTHER_INPUTS,
            )
        except StopRequested:
            raise BadInputError(services.end_reason) from None
        if feed.plan_hash != hash_of(self._config):
            feed.close()
            raise BadInputError(f"{services.run_dir} is in use by a stream with other settings")
        self._feed = feed
        return feed, services

    def leave(self) -> None:
        """Disconnect from the services; they go on."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def close(self) -> None:
        """Disconnect, and stop the services; joined() starts new ones. No effect in a forked child of the caller."""
        if os.getpid() != self._owner:
            return
        self.leave()
        if self._services is not None:
            self._services.stop()
            self._services = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _joined_ranks(self) -> Ranks:
        place = self._place
        if place is None:
            return Ranks.alone()
        if not torch.distributed.is_initialized():
            raise BadInputError(
                f"rank {place.rank} of {place.size}: call torch.distributed.init_process_group() before the first"
                " batch; the ranks agree on each step"
            )
        if place.local_size != place.size:
            raise BadInputError(
                f"{place.size} ranks, {place.local_size} of them on this machine: a stream serves the ranks of one"
                " machine"
            )
        return Ranks.of_callers_group()

    def _start(self, ranks: Ranks) -> None:
        """Start the services, on the first rank; the others learn their folder."""
        told = {}
        if ranks.is_first:
            run_dir = self._kept_dir or Path(tempfile.mkdtemp(prefix="icestream-"))
            own = folder_of(self._config.stream.transform)
            self._services = Services(run_dir, self._config.local, temporary=self._kept_dir is None, own=own)
            before = os.umask(0o077)  # the caller's own umask stays
            try:
                make_run_dir(run_dir)
            finally:
                os.umask(before)
            self._lock = RunLock(run_dir, "trainer", "icestream.stream")
            store_config(run_dir, self._config)
            told = {"run_dir": str(run_dir)}
        run_dir = Path(ranks.broadcast(told)["run_dir"])
        if self._services is None:
            self._services = Services(run_dir, self._config.local, temporary=False)
        else:
            self._services.start()


class Services:
    """The process of stream_process.py, with the fetcher and the decoders below it; restarted if it dies."""

    def __init__(self, run_dir: Path, local: LocalConfig, *, temporary: bool, own: str = "") -> None:
        """``temporary``: the run directory is deleted at the end. ``own``: folder with the user's code."""
        self.run_dir = run_dir
        self.error: str | None = None
        """Error that ends the stream."""
        self._temporary = temporary
        self._environment = {"PYTHONUNBUFFERED": "1"} | ({OWN_PATH_VARIABLE: own} if own else {})
        self._child = Child("services", run_dir / LOGS_FOLDER / "stream.log", RestartPolicy(local.restart_min_s))
        self._looked_s = 0.0
        self._says_why_s = math.inf

    def start(self) -> None:
        """Start the process."""
        self._child.log.parent.mkdir(mode=0o700, exist_ok=True)
        kind = "temporary" if self._temporary else "kept"
        command = python_command("icestream.stream_process", str(self.run_dir), str(os.getpid()), kind)
        with ctrl_c_later():
            self._child.start(command, os.environ | self._environment)
        self._child.policy.started(time.monotonic())

    def ended(self) -> bool:
        """Return True once an error has ended the stream; restart the process if it died. Call it while waiting."""
        now_s = time.monotonic()
        if self.error is not None or now_s - self._looked_s < _LOOK_S:
            return self.error is not None
        self._looked_s = now_s
        child = self._child
        if child.alive and child.wait(0.0):
            exit_code = child.reap()
            if exit_code == USER_ERROR_EXIT_CODE:
                self.error = child.user_error()
            else:
                pause_s = child.policy.died(now_s)
                child.due_s = now_s + pause_s
                logger.warning(
                    "the stream's services %s; they start again in %g s (log: %s)",
                    how_it_ended(exit_code),
                    pause_s,
                    child.log,
                )
        if not child.alive and now_s >= child.due_s:
            self.start()
        if now_s >= self._says_why_s:
            self._says_why_s = now_s + 3 * _SILENCE_S
            logger.warning("no data yet: %s", in_python(self.reason_of_wait()))
        return self.error is not None

    @property
    def end_reason(self) -> str:
        """Error that ended the stream, or that it was stopped."""
        return self.error or "the stream was stopped"

    def begin_wait(self) -> None:
        """Note that the caller asks for data."""
        self._says_why_s = time.monotonic() + _SILENCE_S

    def reason_of_wait(self) -> str:
        """Return the stage that the stream waits for, in words."""
        status = read_fetchers(self.run_dir)
        if status is None:
            return f"the fetcher is starting (log: {self._child.log.with_name('fetcher.log')})"
        if status.problem:
            return status.problem
        if status.listing:
            return f"the inputs are being listed, {status.listed or 'waiting for the first answer'}"
        if status.bottleneck in ("none", "trainer"):  # the caller is the trainer, and waits
            return f"the fetcher has delivered nothing so far (its log: {self._child.log.with_name('fetcher.log')})"
        return f"bottleneck {bottleneck(status)}"

    def stop(self) -> None:
        """Stop all processes, and delete a temporary run directory."""
        if self._child.alive:
            self._child.send(signal.SIGTERM)
            if not self._child.wait(_STOP_S):
                self._child.kill()
            self._child.reap()
        self._child.due_s = math.inf
        if self._temporary:
            shutil.rmtree(self.run_dir, ignore_errors=True)


@contextmanager
def ctrl_c_later() -> Iterator[None]:
    """Keep a Ctrl-C for the end of the block: in the middle of a start it would leave a process that nobody stops."""
    former = signal.getsignal(signal.SIGINT)
    if former is None or threading.current_thread() is not threading.main_thread():  # only that one is interrupted
        yield
        return
    kept: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: kept.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if kept:
        signal.raise_signal(signal.SIGINT)
