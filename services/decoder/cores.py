"""Cores of a decoder: math threads, and cores that no other decoder of this host uses.

A core is claimed by an abstract unix socket named by user and core: the kernel frees it with the process, however that
ends. Such names are visible only in the same network namespace: decoders in containers without a shared network don't
see each other, and get their cores from docker's `cpuset` instead.
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
    """Limit BLAS and OpenMP to ``threads`` threads, unless the user has set another number.

    They read the variables once, while numpy is imported: call this before.
    """
    for name in MATH_THREADS:
        environment.setdefault(name, str(threads))


class ClaimedCores:
    """Cores claimed by this process until it ends, or until they are released."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    @property
    def cores(self) -> tuple[int, ...]:
        """Claimed cores in ascending order."""
        return tuple(sorted(self._sockets))

    def claim(self, candidates: Iterable[int], count: int) -> bool:
        """Claim the first ``count`` free cores; False, without a claim, if there are fewer."""
        for core in candidates:
            if len(self._sockets) == count:
                break
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0{_CLAIM}-{os.getuid()}-{core}")
            except OSError:  # claimed by another process
                claim.close()
                continue
            self._sockets[core] = claim
        if len(self._sockets) == count:
            return True
        self.release()
        return False

    def release(self) -> None:
        """Release all cores."""
        for claim in self._sockets.values():
            claim.close()
        self._sockets.clear()


def pin_to_own_cores(affinity: str, threads: int) -> ClaimedCores:
    """Claim ``threads`` cores of those in ``affinity``, and run on them alone; the result holds the claim.

    Threads that are started later inherit the affinity. Without enough free cores it stays unchanged. Raises
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
