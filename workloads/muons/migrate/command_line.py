"""Flags and values of an old command line, read as argparse would. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from common.errors import BadInputError
from common.redact import shown
from workloads.muons.migrate.flags import EARLIER, FLAGS
from workloads.muons.migrate.old_flag import OldFlag

_BY_NAME = {flag.name: flag for flag in (*FLAGS, *EARLIER)}
_PROCESSES = ("--nproc-per-node", "--nproc_per_node")
"""Option of torchrun."""
_NODES = ("--nnodes",)


@dataclass(frozen=True)
class OldCommand:
    """Old command line: a value for each flag that was given."""

    given: dict[str, Any]
    """Values by flag, the last one of each, without aliases."""
    trainers: int = 1
    """Processes of torchrun on each node."""
    nodes: int = 1
    """Nodes of torchrun."""


def parse(arguments: Sequence[str]) -> OldCommand:
    """Flags behind the script's name. Raises BadInputError that names all unknown flags with the nearest known ones."""
    arguments = [text for text in arguments if text.strip()]  # a line's end with a blank behind the backslash
    script = next((i for i, text in enumerate(arguments) if text.endswith(".py")), None)
    if script is None and arguments and not arguments[0].startswith("-"):
        raise BadInputError(
            f"{shown(arguments[0])}: expected a command such as `python training/train.py --batch-size 1024`, or flags"
        )
    launcher, rest = (arguments[:script], arguments[script + 1 :]) if script is not None else ([], list(arguments))
    given: dict[str, Any] = {}
    unknown: list[str] = []
    while rest:
        name, equals, attached = rest.pop(0).partition("=")
        flag = _flag(name)
        if flag is None:
            unknown.append(_with_nearest(name))
            while rest and not _is_flag(rest[0]):
                rest.pop(0)
            continue
        texts = [attached] if equals else _values(flag, rest)
        given[flag.alias_of or flag.name] = _typed(flag, texts)
    if unknown:
        raise BadInputError(f"no flag of the old script: {'; '.join(unknown)}")
    if not given:
        raise BadInputError(
            "no flag given: put the old command behind --, as in `icestream migrate -- python train.py -i …`"
        )
    return OldCommand(given, _number_of(_PROCESSES, launcher), _number_of(_NODES, launcher))


def _flag(name: str) -> OldFlag | None:
    """Flag by its name, or by a beginning that only one has, as argparse accepts it."""
    if name == "-i":
        name = "--infiles"
    if name in _BY_NAME or not name.startswith("--") or len(name) < 3:
        return _BY_NAME.get(name)
    matches = [flag for flag in FLAGS if flag.name.startswith(name)]
    return matches[0] if len(matches) == 1 else None


def _with_nearest(name: str) -> str:
    near = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.6)
    return f"{shown(name)} (the nearest is {near[0]})" if near else shown(name)


def _is_flag(text: str) -> bool:
    return text.startswith("-") and not text.lstrip("-")[:1].isdigit() and text != "-"


def _values(flag: OldFlag, rest: list[str]) -> list[str]:
    """Texts of a flag's value, taken from the rest of the command line."""
    if flag.takes == "switch":
        return []
    most = len(rest) if flag.takes == "texts" else 1
    texts: list[str] = []
    while rest and len(texts) < most and not _is_flag(rest[0]):
        texts.append(rest.pop(0))
    if not texts:
        raise BadInputError(f"{flag.name}: a value is missing")
    return texts


def _typed(flag: OldFlag, texts: list[str]) -> Any:
    """Value of a flag, of its type. Raises BadInputError."""
    if flag.takes == "switch":
        if texts:
            raise BadInputError(f"{flag.name} takes no value")
        return True
    if flag.takes == "texts":
        return tuple(texts)
    (text,) = texts
    try:
        value = {"int": int, "float": float, "text": str}[flag.takes](text)
    except ValueError:
        what = "a whole number" if flag.takes == "int" else "a number"
        raise BadInputError(f"{flag.name} {shown(text)}: expected {what}") from None
    if flag.takes == "text" and flag.values and value not in flag.values and flag.name != "--device":
        raise BadInputError(f"{flag.name} {shown(text)}: expected one of {', '.join(flag.values)}")
    return value


def _number_of(names: Sequence[str], launcher: Sequence[str]) -> int:
    """Return the number given by one of these options of torchrun, else 1. Raises BadInputError for what is none."""
    for first, second in pairwise([*launcher, ""]):
        name, equals, attached = first.partition("=")
        if name in names:
            value = attached if equals else second
            if not value.isdecimal() or not int(value):
                raise BadInputError(f"{name} {shown(value)}: expected the number that the old runs had")
            return int(value)
    return 1
