"""Settings of a resumed run that differ from those of its checkpoint. Pure."""

from __future__ import annotations

import json

from services.config.leaves import leaves


def changed_settings(before_json: str, now_json: str, branch: str = "trainer") -> list[str]:
    """One line for each key of ``branch`` in both configurations whose value has changed: `key: before → now`.

    A text that is no configuration changes nothing.
    """
    try:
        before, now = json.loads(before_json), json.loads(now_json)
    except ValueError:
        return []
    if not isinstance(before, dict) or not isinstance(now, dict):
        return []
    old, new = dict(leaves({branch: before.get(branch)})), dict(leaves({branch: now.get(branch)}))
    return [f"{key}: {old[key]} → {new[key]}" for key in new if key in old and old[key] != new[key]]
