"""Python API: functions for scripts and notebooks, each imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from icestream.own_packages import check_own_packages

if TYPE_CHECKING:
    from common.errors import BadInputError
    from icestream.streaming.batch import RaggedBatch
    from icestream.streaming.stream import EventStream, stream
    from icestream.verbs import evaluate, load, simulate
    from workloads.base.module_training import ModelSettings, ModuleTraining

    __version__: str

check_own_packages()

__all__ = [
    "BadInputError",
    "EventStream",
    "ModelSettings",
    "ModuleTraining",
    "RaggedBatch",
    "__version__",
    "evaluate",
    "load",
    "simulate",
    "stream",
]

_TARGETS = {
    "BadInputError": "common.errors:BadInputError",
    "ModelSettings": "workloads.base.module_training:ModelSettings",
    "ModuleTraining": "workloads.base.module_training:ModuleTraining",
    "RaggedBatch": "icestream.streaming.batch:RaggedBatch",
    "EventStream": "icestream.streaming.stream:EventStream",
    "evaluate": "icestream.verbs:evaluate",
    "load": "icestream.verbs:load",
    "simulate": "icestream.verbs:simulate",
    "stream": "icestream.streaming.stream:stream",
}
"""Name -> `module:attribute`."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("icestream")
    elif name in _TARGETS:
        module, _, attribute = _TARGETS[name].partition(":")
        found = getattr(import_module(module), attribute)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
