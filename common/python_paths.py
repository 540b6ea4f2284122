"""Paths as they are given to functions of the Python API: in one place, so that each takes texts and paths alike."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from common.errors import BadInputError
from common.options import absolute
from common.user_path import user_path

PathText = str | os.PathLike[str]
Paths = PathText | Iterable[PathText]


def given_path(value: object, name: str) -> Path:
    """Return the absolute path that was given as the argument ``name``. Raises BadInputError."""
    if not _is_path(value):
        raise BadInputError(f"{name} = {value!r}: expected a path")
    return user_path(value).absolute()  # type: ignore[arg-type]


def given_inputs(value: object, name: str) -> tuple[str, ...]:
    """Return the inputs that were given as the argument ``name``, one or several in order, with absolute paths.

    Any iterable is read once. Raises BadInputError, also for what has no order or whose keys would be taken.
    """
    if _is_path(value):
        return absolute((os.fspath(value),))  # type: ignore[call-overload]
    if isinstance(value, Mapping):
        raise BadInputError(f"{name} is a mapping, of which only the keys would be read: give list({name}.values())")
    if isinstance(value, set | frozenset):
        raise BadInputError(f"{name} is a set, which has another order in each process: give sorted({name})")
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise BadInputError(f"{name} = {value!r}: expected a path, or several")
    several = tuple(value)
    for one in several:
        if not _is_path(one):
            raise BadInputError(f"{name} has {one!r} in it: expected paths")
    return absolute(tuple(map(os.fspath, several)))


def _is_path(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, os.PathLike) and isinstance(os.fspath(value), str))
