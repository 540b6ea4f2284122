"""Open files: how many a process of a run may need, and the limit of this process.

A process that has none left can neither take a connection nor start another process: the run would stand still.
"""

from __future__ import annotations

import contextlib
import resource

from common.errors import BadInputError
from services.config.root import Config

_OF_ANY_PROCESS = 128
"""Measured: 40 in a decoder (two for each of 16 files), 30 in a fetcher, 18 in a trainer on the CPU."""
_OF_A_PEER = 4
"""Measured: 3 in the fetcher for each decoder, 1 in the supervisor."""
_OF_A_TRANSFER = 4


def open_files_needed(config: Config) -> int:
    """Return the number of open files that is enough for each process of a run."""
    peers = max(config.local.decoders_at_start, config.local.max_decoders) + config.local.trainers
    transfers = config.fetcher.transfers if any("://" in text for text in config.input) else 0
    return _OF_ANY_PROCESS + _OF_A_PEER * peers + _OF_A_TRANSFER * transfers


def require_open_files(config: Config) -> None:
    """Raise this process's limit to what is needed; its children inherit it. Raises BadInputError if it can't be."""
    needed = open_files_needed(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    with contextlib.suppress(OSError, ValueError):  # above the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    raise BadInputError(
        f"a process may open {hard} files here (ulimit -n), and this run needs up to {needed}: raise the limit, for"
        f" example by `ulimit -n {needed}`, as root or in /etc/security/limits.conf, or lower --decoders"
    )
