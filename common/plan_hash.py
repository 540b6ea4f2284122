"""The name of a plan: equal hashes give equal streams. Its first half names the settings alone, so that each process
can check that it has the same ones; the second half names settings and inventory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable

from common.config import StreamConfig
from common.redact import without_tokens
from common.schema import SCHEMA_VERSION, Workload

PLAN_VERSION = 2
"""Part of the hash: raise it when the same input gives other units."""

_HALF_BYTES = 8


def settings_hash(workload: Workload, stream: StreamConfig, seed: int) -> str:
    """16 hexadecimal digits: everything besides the files that a unit's bytes depend on."""
    settings = {
        "plan": PLAN_VERSION,
        "schema": SCHEMA_VERSION,
        "workload": dataclasses.asdict(workload),
        "stream": stream.model_dump(mode="json", exclude={"slots"}),  # their number changes no unit, their size does
        "seed": seed,
    }
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=_HALF_BYTES).hexdigest()


def plan_hash(settings: str, files: Iterable[tuple[str, int]]) -> str:
    """32 hexadecimal digits, of ``settings_hash()`` and (URL, bytes) of every file of the inventory, in order."""
    digest = hashlib.blake2b(settings.encode(), digest_size=_HALF_BYTES)
    for url, size_bytes in files:
        # Without its token: a renewed one makes no other plan.
        digest.update(f"{without_tokens(url)}\0{size_bytes}\n".encode())
    return settings + digest.hexdigest()


def has_settings(plan: str, workload: Workload, stream: StreamConfig, seed: int) -> bool:
    """True if the plan was made with these settings."""
    return plan[: 2 * _HALF_BYTES] == settings_hash(workload, stream, seed)
