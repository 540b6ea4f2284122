"""Python API: functions for scripts and notebooks, each imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from common.errors import BadInputError
    from icestream.streaming import EventStream, RaggedBatch, stream
    from icestream.verbs import evaluate, geometry, load, simulate
    from workloads.base.module_training import ModelSettings, ModuleTraining

    __version__: str

__all__ = [
    "BadInputError",
    "EventStream",
    "ModelSettings",
    "ModuleTraining",
    "RaggedBatch",
    "__version__",
    "evaluate",
    "geometry",
    "load",
    "simulate",
    "stream",
]

OWN_PACKAGES = ("common", "services", "workloads")
"""Top-level packages of the distribution besides `icestream`."""


def check_own_packages() -> None:
    """Raise ImportError, with the remedy, where another program's package hides one of icestream's."""
    root = Path(__file__).resolve().parents[1]
    for name in OWN_PACKAGES:
        spec = find_spec(name)
        place = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
        if not place:
            raise ImportError(f"icestream: its package '{name}' is missing in {root}: install icestream again")
        if not Path(place).resolve().is_relative_to(root / name):
            raise ImportError(
                f"icestream: its package '{name}' is hidden by {place}, which Python finds first: rename that, "
                "or take its directory out of PYTHONPATH and of the working directory"
            )


check_own_packages()


_MODULES = {
    "BadInputError": "common.errors",
    **dict.fromkeys(("EventStream", "RaggedBatch", "stream"), "icestream.streaming"),
    **dict.fromkeys(("evaluate", "geometry", "load", "simulate"), "icestream.verbs"),
    **dict.fromkeys(("ModelSettings", "ModuleTraining"), "workloads.base.module_training"),
}


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        from importlib.metadata import version

        value = version("icestream")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
