"""The cores that a decoder uses: math threads, and cores of its own that no other decoder of this host has.

A core is claimed by an abstract unix socket whose name holds the user and the core: the kernel frees it with the
process, however that ends. Such names are seen by processes of the same network namespace only: decoders in containers
without a shared network don't see each other, and get their cores from docker's `cpuset` instead.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, MutableMapping

from common.errors import BadInputError
from services.config.decoder import parse_cores

logger = logging.getLogger(__name__)

_CLAIM = "icestream-core"
MATH_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def limit_math_threads(threads: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let BLAS and OpenMP use ``threads`` threads, unless the user has said otherwise.

    They read it once, while numpy is imported: call this before.
    """
    for name in MATH_THREADS:
        environment.setdefault(name, str(threads))


class ClaimedCores:
    """Cores that are this process's own until it ends, or until they are released."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    @property
    def cores(self) -> tuple[int, ...]:
        """Those that are held, in ascending order."""
        return tuple(sorted(self._sockets))

    def claim(self, candidates: Iterable[int], count: int) -> bool:
        """Take the first ``count`` cores that nobody has; False, and none is taken, if there are fewer."""
        for core in candidates:
            if len(self._sockets) == count:
                break
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0{_CLAIM}-{os.getuid()}-{core}")
            except OSError:  # somebody has it
                claim.close()
                continue
            self._sockets[core] = claim
        if len(self._sockets) == count:
            return True
        self.release()
        return False

    def release(self) -> None:
        """Let others have them."""
        for claim in self._sockets.values():
            claim.close()
        self._sockets.clear()


def pin_to_own_cores(affinity: str, threads: int) -> ClaimedCores:
    """Claim ``threads`` cores of those that ``affinity`` names, and run on them alone; hold what is returned.

    Threads that are started later inherit it. Without enough free cores the process stays where it may run. Raises
    BadInputError for a core that this process may not use.
    """
    claimed = ClaimedCores()
    if not affinity:
        return claimed
    usable = sorted(os.sched_getaffinity(0))
    candidates = usable if affinity == "auto" else parse_cores(affinity)
    foreign = sorted(set(candidates) - set(usable))
    if foreign:
        raise BadInputError(
            f"decoder.affinity = {affinity!r}: this process may not use core {foreign[0]}, only {_shown(usable)}"
        )
    if claimed.claim(candidates, threads):
        os.sched_setaffinity(0, claimed.cores)
        logger.info("runs on core %s alone", _shown(claimed.cores))
    else:
        logger.warning(
            "decoder.affinity = %r: fewer than decoder.threads = %d of these cores are left; running unpinned",
            affinity,
            threads,
        )
    return claimed


def _shown(cores: Iterable[int]) -> str:
    return ",".join(str(core) for core in cores)
