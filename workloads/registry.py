"""Registry of workloads: each folder of `workloads/` with a module `workload`. Imports no torch.

A workload outside of this repository is a folder `workloads/NAME/` in a directory of PYTHONPATH, without a
`workloads/__init__.py`, which would hide this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import workloads
from workloads.base.verb import Verb

if TYPE_CHECKING:
    from workloads.base.interface import Workload  # pydantic: the list of commands needs none

DEFAULT = "muons"
"""Workload of a run if its files do not show another one."""


@cache
def names() -> tuple[str, ...]:
    """Names of all workloads, the default first."""
    found = {path.parent.name for folder in workloads.__path__ for path in Path(folder).glob("*/workload.py")}
    return (DEFAULT, *sorted(found - {DEFAULT}))


@cache
def workload(name: str) -> Workload:
    """Workload named ``name``, which must be one of names()."""
    found: Workload = import_module(f"workloads.{name}.workload").WORKLOAD
    assert found.name == name, f"workloads/{name} calls itself {found.name}"
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
    found: Mapping[str, Verb] = import_module(f"workloads.{name}.verbs").VERBS
    return found


def sample(name: str) -> Callable[[Path, int, int], None] | None:
    """Writer of simulated events of the workload ``name``; None if it has none."""
    target = workload(name).sample
    return imported(target) if target is not None else None


def imported(target: str) -> Any:
    """Object named by `module:attribute`."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
