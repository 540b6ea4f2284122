"""Registry of workloads: each folder of `workloads/` with a module `workload`. Imports no torch.

A workload outside of this repository is a folder `workloads/NAME/` in a directory of PYTHONPATH, without a
`workloads/__init__.py`, which would hide this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import workloads
from common.errors import BadInputError, IcestreamError
from common.own_code import OWN_SECTION, described, is_own
from common.paths import require_private
from workloads.base.interface import Importer, Verb, Workload, lazy

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
    return loaded(lazy(*target.split(":")))


def loaded(function: Callable[[], Object]) -> Object:
    """Object that a lazy function of a workload returns. Raises BadInputError likewise."""
    try:
        return function()
    except IcestreamError:
        raise
    except Exception as error:
        if not function.__module__.startswith("workloads."):
            raise
        raise BadInputError(
            f"{function.__module__}:{function.__name__} can't be imported: {described(error)}"
        ) from error
