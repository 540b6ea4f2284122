"""Name of a plan, in two parts. The plan hash covers the settings: each process can check that it has the same ones.
The inventory digest covers the files, range by range: it grows with the ranges that were listed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from typing import Any

from common.config import StreamConfig
from common.redact import without_tokens
from common.schema import SCHEMA_VERSION, EventSchema

PLAN_VERSION = 4
"""Version of the plan, part of the hash: raise it when the same input gives other units."""

_BYTES = 16
_USUAL_INVALID_SHARE = 0.05
"""Value of `source.max_invalid_share` that is omitted from the hash: the setting came after plan version 4."""
_EVERY_RANGE = "every range"


def plan_hash(workload: EventSchema, stream: StreamConfig, seed: int) -> str:
    """Hash of everything besides the files that a unit's bytes depend on: 32 hexadecimal digits."""
    described = _described(workload)
    of_stream = stream.model_dump(mode="json", exclude={"slots"})  # their number changes no unit, their size does
    if not stream.held_out:
        del described["identity"]
    settings = {
        "plan": PLAN_VERSION,
        "schema": SCHEMA_VERSION,
        "workload": described,
        "stream": of_stream,
        "seed": seed,
    }
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=_BYTES).hexdigest()


def _described(schema: EventSchema) -> dict[str, Any]:
    """Schema as JSON, under the names of plan version 3.

    ``nesting`` is the number of lists around a value; ``depth`` are the fields of finish_unit, as is ``slant_depth``
    where depths are slant. Later additions to schemas are omitted where they are not used.
    """
    described = dataclasses.asdict(schema)
    finish, source = described.pop("finish_unit"), described.pop("source")
    del described["physical"]  # no reader uses it
    is_slant = source.depth_kind == "slant"
    described |= {"depth": finish, "slant_depth": finish if is_slant else None, "nulls": source.nulls}
    for column, known in zip(described["source_columns"], schema.source_columns, strict=True):
        del column["known_as"], column["part_of_list"]  # name, into and field say it all
        column["nesting"] = int(known.is_list) + int(schema.per(known) == "particle")
    if source.ids != "columns":
        described["ids"] = source.ids
    if source.max_invalid_share != _USUAL_INVALID_SHARE:
        described["max_invalid_share"] = source.max_invalid_share
    if not schema.derived:
        del described["derived"]
    if not schema.relative:
        del described["relative"]
    for rule in described["rules"]:
        if rule["maximum"] == float("inf"):
            del rule["maximum"]
    return described


def files_digest(files: Iterable[tuple[str, int]]) -> str:
    """Digest of (URL, bytes) of every file of a range, in order: 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=_BYTES)
    for url, size_bytes in files:
        # Without its token: a renewed one makes no other plan.
        digest.update(f"{without_tokens(url)}\0{size_bytes}\n".encode())
    return digest.hexdigest()


def inventory_digest(before: str, files: str) -> str:
    """Inventory digest after one more range: of that before it ("" for the first) and its ``files_digest()``."""
    return hashlib.blake2b(f"{before} {files}".encode(), digest_size=_BYTES).hexdigest()


def complete_digest(inventory: str) -> str:
    """Inventory digest of data from the second epoch on: no range can follow without changing its plan."""
    return inventory_digest(inventory, _EVERY_RANGE)
