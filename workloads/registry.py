"""Registry of workloads: each folder of `workloads/` with a module `workload`. Imports no torch.

A workload outside of this repository is a folder `workloads/NAME/` in a directory of PYTHONPATH, without a
`workloads/__init__.py`, which would hide this package.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import workloads
from common.errors import BadInputError, IcestreamError
from common.private_path import require_private
from workloads.base.verb import Verb

if TYPE_CHECKING:
    from workloads.base.interface import Workload  # pydantic: the list of commands needs none

DEFAULT = "muons"
"""Workload of a run if its files do not show another one."""


@cache
def names() -> tuple[str, ...]:
    """Names of all workloads, the default first. Raises BadInputError if others can change one from elsewhere."""
    found = {path.parent.name: path for folder in workloads.__path__ for path in Path(folder).glob("*/workload.py")}
    for path in found.values():
        if path.parent.parent != Path(__file__).parent:
            require_private(path, "the workload")
    return (DEFAULT, *sorted(found.keys() - {DEFAULT}))


@cache
def workload(name: str) -> Workload:
    """Workload named ``name``, which must be one of names()."""
    found: Workload = imported(f"workloads.{name}.workload:WORKLOAD")
    if found.name != name:
        raise BadInputError(
            f"workloads/{name}/workload.py: its name is {found.name!r}; expected {name!r}, as the folder's"
        )
    return found


def every_workload() -> Iterator[Workload]:
    """All workloads, the default first."""
    return map(workload, names())


@cache
def verbs(name: str) -> Mapping[str, Verb]:
    """Commands of the workload ``name``."""
    folders = [Path(folder) / name for folder in workloads.__path__]
    if not any((folder / "verbs.py").exists() for folder in folders):
        return {}
    found: Mapping[str, Verb] = imported(f"workloads.{name}.verbs:VERBS")
    return found


def sample(name: str) -> Callable[[Path, int, int], None] | None:
    """Writer of simulated events of the workload ``name``; None if it has none."""
    target = workload(name).sample
    return imported(target) if target is not None else None


def function(name: str, use: str) -> Callable[..., Any]:
    """Function for Python of the workload ``name``: see Workload.functions. Raises BadInputError if it has none."""
    if name not in names():
        raise BadInputError(f"no workload {name!r}; there are {', '.join(names())}")
    target = workload(name).functions.get(use)
    if target is None:
        raise BadInputError(f"the workload {name} has no {use!r}")
    found: Callable[..., Any] = imported(target)
    return found


def imported(target: str) -> Any:
    """Object named by `module:attribute`. Raises BadInputError, in one line, for an error in a workload's code."""
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except IcestreamError:
        raise
    except Exception as error:
        if not module.startswith("workloads."):
            raise
        what = f"{type(error).__name__}: {error}{_place(error)}"
        raise BadInputError(f"{target} can't be imported: {what}") from error


def _place(error: Exception) -> str:
    """Place in a workload where the error was raised."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if any(Path(frame.filename).is_relative_to(one) for one in workloads.__path__)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
