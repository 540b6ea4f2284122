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
from typing import Any, TypeVar

import workloads
from common.errors import BadInputError, IcestreamError
from common.own_code import OWN_SECTION, is_own
from common.paths import require_private
from workloads.base.interface import Importer, Verb, Workload

Object = TypeVar("Object")

DEFAULT = "muons"
"""Workload of a run if its files do not show another one."""
NO_MODEL = "none"
"""Value of `trainer.model` for a training that only takes the stream (base/module_training.py)."""


@cache
def names() -> tuple[str, ...]:
    """Names of all workloads, the default first. Raises BadInputError if others can change one from elsewhere."""
    modules = {path.parent.name: path for folder in workloads.__path__ for path in Path(folder).glob("*/workload.py")}
    for path in modules.values():
        if path.parent.parent != Path(__file__).parent:
            require_private(path, "the workload")
    return (DEFAULT, *sorted(modules.keys() - {DEFAULT}))


@cache
def workload(name: str) -> Workload:
    """Workload named ``name``, which must be one of names()."""
    module: Workload = imported(f"workloads.{name}.workload:WORKLOAD")
    if module.name != name:
        raise BadInputError(
            f"workloads/{name}/workload.py: its name is {module.name!r}; expected {name!r}, as the folder's"
        )
    return module


def every_workload() -> Iterator[Workload]:
    """All workloads, the default first."""
    return map(workload, names())


def section_name(model: str) -> str:
    """Section of `trainer` with the settings of a model: `own` for one of the user's own."""
    if is_own(model):
        return OWN_SECTION
    models = (workload.models.get(model) for workload in every_workload())
    return next((known.section for known in models if known is not None), "") or model


@cache
def verbs(name: str) -> Mapping[str, Verb]:
    """Commands of the workload ``name``."""
    folders = [Path(folder) / name for folder in workloads.__path__]
    if not any((folder / "verbs.py").exists() for folder in folders):
        return {}
    table: Mapping[str, Verb] = imported(f"workloads.{name}.verbs:VERBS")
    return table


def importers() -> Mapping[str, Callable[[], Importer]]:
    """Lazy functions of the importers of all workloads, by the name of their layout."""
    return {layout: importer for one in every_workload() for layout, importer in one.importers.items()}


def function(name: str, use: str) -> Callable[..., Any]:
    """Function for Python of the workload ``name``: see Workload.functions. Raises BadInputError if it has none."""
    if name not in names():
        raise BadInputError(f"no workload {name!r}; there are {', '.join(names())}")
    function = workload(name).functions.get(use)
    if function is None:
        raise BadInputError(f"the workload {name} has no {use!r}")
    return loaded(function)


def imported(target: str) -> Any:
    """Object named by `module:attribute`. Raises BadInputError, in one line, for an error in a workload's code."""
    module, _, attribute = target.partition(":")
    return _loaded(lambda: getattr(import_module(module), attribute), module, target)


def loaded(lazy: Callable[[], Object]) -> Object:
    """Object that a lazy function of a workload returns. Raises BadInputError likewise."""
    return _loaded(lazy, lazy.__module__, f"{lazy.__module__}.{lazy.__name__}")


def _loaded(lazy: Callable[[], Object], module: str, name: str) -> Object:
    try:
        return lazy()
    except IcestreamError:
        raise
    except Exception as error:
        if not module.startswith("workloads."):
            raise
        what = f"{type(error).__name__}: {error}{_place(error)}"
        raise BadInputError(f"{name} can't be imported: {what}") from error


def _place(error: Exception) -> str:
    """Place in a workload where the error was raised."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if any(Path(frame.filename).is_relative_to(one) for one in workloads.__path__)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
