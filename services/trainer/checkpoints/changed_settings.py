"""Settings of a resumed run that differ from those of its checkpoint. Pure."""

from __future__ import annotations

import json
from typing import Any

from services.config.leaves import leaves


def changed_settings(before_json: str, now_json: str, branch: str = "trainer") -> list[str]:
    """One line for each changed value: `key: before → now`."""
    return [f"{key}: {before} → {now}" for key, before, now in changed_values(before_json, now_json, branch)]


def changed_values(before_json: str, now_json: str, branch: str = "trainer") -> list[tuple[str, Any, Any]]:
    """Key, value before and value now of each key of ``branch`` in both configurations whose value has changed.

    A text that is no configuration changes nothing.
    """
    try:
        before, now = json.loads(before_json), json.loads(now_json)
    except ValueError:
        return []
    if not isinstance(before, dict) or not isinstance(now, dict):
        return []
    old, new = dict(leaves({branch: before.get(branch)})), dict(leaves({branch: now.get(branch)}))
    return [(key, old[key], new[key]) for key in new if key in old and old[key] != new[key]]
