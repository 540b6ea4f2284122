"""Settings of a run in its shared folder: node 0 replaces them at each start, unless that is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

from common.atomic_file import replace_file
from common.errors import TryAgainError
from common.locks import RunAttempt
from common.paths import CONFIG_FILE, INVENTORY_FOLDER
from services.config.root import Config, store_config
from workloads.base.checkpoint import CHECKPOINT_FOLDER, STEP_NAME, newest_step

_RECORDS = ("planned-*", "begun-*", "bad-*", "epochs-*")


class SharedSettings:
    """Settings in the folder ``shared``, as one start of node 0 finds and leaves them."""

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._path = shared / CONFIG_FILE
        self._attempt: RunAttempt | None = None
        self._former: bytes | None = None
        self._step = 0

    def replace(self, config: Config, attempt: RunAttempt) -> bytes:
        """Store these settings for all nodes; the content of the file. Raises TryAgainError."""
        with attempt.publishing():
            self._attempt = attempt
            self._former = self._path.read_bytes() if self._path.exists() else None
            self._step = newest_step(self._shared)
            if not self._step:
                self._forget()
            store_config(self._shared, config)
            return self._path.read_bytes()

    def put_back(self) -> None:
        """Store the former settings again, if nothing was trained with those of this start: it was refused.

        A mistyped input, or a workload detected in it, would else be that of all later starts.
        """
        if self._attempt is None:
            return
        with contextlib.suppress(TryAgainError), self._attempt.publishing():
            if newest_step(self._shared) != self._step:
                return
            if self._former is None:
                self._path.unlink(missing_ok=True)
            else:
                replace_file(self._path, self._former, durable=True)

    def _forget(self) -> None:
        """Delete what the shards have noted of files and blocks, and a checkpoint before the first step, which has the
        plan of its start: nothing is trained, and the inputs may be others."""
        records = [path for pattern in _RECORDS for path in (self._shared / INVENTORY_FOLDER).glob(pattern)]
        found = (self._shared / CHECKPOINT_FOLDER).glob("step-*")
        for path in (*records, *(path for path in found if STEP_NAME.fullmatch(path.name))):
            path.unlink(missing_ok=True)
