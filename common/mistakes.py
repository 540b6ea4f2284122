"""Mistakes of a configuration as lines for its user: all that can be found at once. Pure."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from common.errors import BadInputError, BadInputsError
from common.redact import without_secrets

T = TypeVar("T")

GONE = {
    "stream.lanes": "stream.lanes is gone: all trainers of a shard share one stream, whose batches don't depend on"
    " their number; leave it out"
}
"""Line about each key of former versions that users had reason to set."""
_TYPING_ERROR = 0.8
"""Similarity of a key and one with a typing error."""
_RESEMBLANCE = 0.5
_MOST_SHOWN = 6


def refuse(mistakes: Iterable[str]) -> None:
    """Raise BadInputError with the mistakes, each once; nothing without any."""
    lines = tuple(dict.fromkeys(without_secrets(line) for line in mistakes))  # a value may be a token
    if len(lines) == 1:
        raise BadInputError(lines[0])
    if lines:
        raise BadInputsError("the configuration", lines)


def unknown_key(key: str, keys: Sequence[str], source: str = "") -> str:
    """Line about a key that does not exist, with the nearest that does."""
    if gone := [line for former, line in GONE.items() if key in (former, former.rpartition(".")[2])]:
        return f"{source}{': ' if source else ''}{gone[0]}"
    leaves = {known.rpartition(".")[2]: known for known in keys}
    name = key.rpartition(".")[2]
    match = difflib.get_close_matches(key, keys, n=1, cutoff=_TYPING_ERROR)
    match = match or [leaves[m] for m in difflib.get_close_matches(name, leaves, n=1, cutoff=_TYPING_ERROR)]
    match = match or [known for known in keys if name in known.rpartition(".")[2].split("_")]
    match = match or difflib.get_close_matches(key, keys, n=1, cutoff=_RESEMBLANCE)
    match = match or [leaves[m] for m in difflib.get_close_matches(name, leaves, n=1, cutoff=_RESEMBLANCE)]
    hint = "; `icestream config --keys` lists all keys"
    if match:
        hint = f"; did you mean {' or '.join(map(repr, match[:_MOST_SHOWN]))}?"
    return f"{source}{': ' if source else ''}unknown configuration key {key!r}{hint}"


def validated(
    validate: Callable[[Mapping[str, Any]], T],
    tree: Mapping[str, Any],
    keys: Sequence[str],
    mistakes: Sequence[str] = (),
    section: str = "",
) -> T:
    """Valid configuration of ``tree``. Raises BadInputError with its mistakes, behind those that are known already.

    ``section``: key of the table that the tree is, if it is one of a user's own model; ``keys`` are full ones.

    Wrong values hide the checks between fields: those are made again without them.
    """
    found, removed = list(mistakes), set[str]()
    left = copy.deepcopy(dict(tree))
    while True:
        try:
            config = validate(left)
        except ValidationError as error:
            lines = _lines(error, keys, section)
            # A check of a default in the place of a removed value is not about the user's.
            found += [line for _, line in lines if not any(key in line for key in removed)]
            wrong = {key for key, _ in lines if remove(left, key.removeprefix(f"{section}."))}
            removed |= wrong
            if wrong:
                continue
            refuse(found)
            raise
        refuse(found)
        return config


def _lines(error: ValidationError, keys: Collection[str], section: str) -> list[tuple[str, str]]:
    """Dotted key, and line about it, of each error."""
    found: list[tuple[str, str]] = []
    for detail in error.errors():
        key = ".".join(map(str, (section, *detail["loc"]) if section else detail["loc"]))
        key = key.removesuffix(".str").removesuffix(".tuple[str, ...]")  # pydantic's names of a union's types
        if detail["type"] == "extra_forbidden":
            line = _unknown_of_section(key, keys, section) if section else unknown_key(key, list(keys))
        elif detail["type"] == "value_error":
            text = str(detail["ctx"]["error"])  # a check between fields names them itself
            if section:  # text of the user's own
                line = f"{key} = {detail['input']!r}: {text}" if key in keys else f"{section}: {text}"
            else:
                line = f"{key} = {detail['input']!r}: expected {text}" if key in keys else text
        elif detail["type"] == "missing":
            line = f"{key}: a value is needed, it has no default"
        else:
            line = f"{key} = {detail['input']!r}: {_expected(detail)}"
            if found and found[-1][0] == key:  # the next type of a union
                line = f"{found.pop()[1]}, or {_expected(detail).removeprefix('expected ')}"
        found.append((key, line))
    return found


def _unknown_of_section(key: str, keys: Collection[str], section: str) -> str:
    """Line about a key that a user's own model lacks."""
    names = [known.removeprefix(f"{section}.") for known in keys]
    match = difflib.get_close_matches(key.removeprefix(f"{section}."), names, n=1)
    hint = f"did you mean {f'{section}.{match[0]}'!r}?" if match else f"{section} has {', '.join(names)}"
    return f"unknown configuration key {key!r}; {hint}"


def _expected(detail: ErrorDetails) -> str:
    """Expected value in plain words, from an error of pydantic."""
    context = {
        name: f"{value:g}" if isinstance(value, float) else value for name, value in detail.get("ctx", {}).items()
    }
    words = {
        "greater_than": "a number above {gt}",
        "greater_than_equal": "a number of at least {ge}",
        "less_than": "a number below {lt}",
        "less_than_equal": "a number of at most {le}",
        "literal_error": "{expected}",
        "int_parsing": "a whole number",
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_parsing": "a number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_parsing": "true or false",
        "bool_type": "true or false",
        "string_type": "a text",
        "string_too_short": "a text that is not empty",
        "tuple_type": 'a list, for example ["a", "b"]',
        "dict_type": "a table",
        "model_type": "a table of settings",
        "path_type": "a path",
    }.get(detail["type"])
    return f"expected {words.format(**context)}" if words is not None else detail["msg"]


def remove(tree: dict[str, Any], dotted: str) -> bool:
    """Remove the value or branch of a key; for an element of a list, the list. False if there is none."""
    name, _, below = dotted.partition(".")
    if name not in tree:
        return False
    if below and isinstance(tree[name], dict):
        return remove(tree[name], below)
    del tree[name]
    return True
