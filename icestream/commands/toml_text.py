"""Values of the configuration as TOML. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_value(value: object) -> str:
    """TOML expression of a value. Raises TypeError for one that TOML does not have, such as None."""
    match value:
        case bool() | int() | float() | str():  # finite numbers and texts are written as in JSON, but for one sign
            return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")
        case Path():
            return toml_value(str(value))
        case Mapping():
            return "{" + ", ".join(f"{_key(str(key))} = {toml_value(one)}" for key, one in value.items()) + "}"
        case Sequence():
            return "[" + ", ".join(map(toml_value, value)) + "]"
    raise TypeError(f"{value!r} is no TOML value")


def toml_line(key: str, value: object) -> str:
    """Line `key = value`; a comment for a value that can't be written, None: the key is left out to have it."""
    return f"# {key} is not set" if value is None else f"{key} = {toml_value(value)}"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
