"""Processes and connection behind one stream, from its first batch to close()."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch

from common.errors import BadInputError
from common.file_lock import RunLock
from common.run_dir import make_run_dir
from common.schema import EventSchema
from common.transport import StopRequested
from icestream.streaming.services import Services
from icestream.streaming.settings import hash_of
from services.config.root import Config, store_config
from services.trainer.ranks.agreement import Agreement
from services.trainer.ranks.rank_place import RankPlace
from services.trainer.ranks.ranks import Ranks
from services.trainer.stream.copier import copiers_for
from services.trainer.stream.feed import Feed

_OTHER_INPUTS = "(its inputs were others): use the same files to continue it"


class Session:
    """Services of a stream, and the feed that is connected to them."""

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
        """Feed and services, started if necessary. Raises BadInputError."""
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
                copiers=copiers_for(self._device, [column.name for column in self._schema.columns]),
                prefetch_units=self._config.trainer.prefetch_units,
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
        folder = b""
        if ranks.is_first:
            run_dir = self._kept_dir or Path(tempfile.mkdtemp(prefix="icestream-"))
            self._services = Services(run_dir, self._config.local, temporary=self._kept_dir is None)
            _make_for_owner(run_dir)
            self._lock = RunLock(run_dir, "trainer", "icestream.stream")
            store_config(run_dir, self._config)
            folder = os.fsencode(run_dir)
        run_dir = Path(os.fsdecode(ranks.broadcast(folder)))
        if self._services is None:
            self._services = Services(run_dir, self._config.local, temporary=False)
        else:
            self._services.start()


def _make_for_owner(run_dir: Path) -> None:
    """Make the directory for its owner only, without a change of the caller's umask. Raises BadInputError."""
    before = os.umask(0o077)
    try:
        make_run_dir(run_dir)
    finally:
        os.umask(before)
