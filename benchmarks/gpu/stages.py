"""Stages in the order in which they are measured, the most important first, each with its limit.

The limits and the start add up to the budget: a stage may take its own, and what those before it have left.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

MODEL = ("numpy", "pydantic")
"""Packages that the models need beside torch: arrays on the host, and settings."""

_PACKAGES = {"zmq": "pyzmq"}
"""Module -> package, where they differ."""


class Stage(NamedTuple):
    """One stage, in a process of its own."""

    name: str
    title: str
    limit_s: float
    needs: tuple[str, ...] = ()
    """Modules beside torch."""
    only_cuda: str = ""
    """Why it makes no sense on the CPU; empty: it does."""

    @property
    def module(self) -> str:
        """Module with its function `run`."""
        return f"benchmarks.gpu.{self.name}_stage"

    def reason_to_skip(self, *, is_cuda: bool) -> str:
        """Why it can't be measured here; empty: it can."""
        if self.only_cuda and not is_cuda:
            return self.only_cuda
        missing = missing_modules(self.needs)
        packages = " ".join(_PACKAGES.get(name, name) for name in missing)
        return f"not installed: {', '.join(missing)} (pip install {packages})" if missing else ""


def missing_modules(names: Sequence[str]) -> list[str]:
    """Modules that this Python doesn't have."""
    return [name for name in names if find_spec(name) is None]


START_S = 15.0
"""For the start: torch is loaded, once, and the machine described."""
MACHINE = Stage("machine", "Machine", 60)
STAGES = (
    Stage("ceilings", "Ceilings of the card", 25),
    Stage("step", "Step: plain and shipped", 75, MODEL),
    Stage("checks", "Host syncs, deterministic mode, agreement with the plain step", 40, MODEL),
    Stage("segments", "Segment operators", 25),
    Stage("compiled", "Step: compiled", 70, MODEL, "the code is that of a GPU here"),
    Stage("kernels", "Kernels of a step", 20, MODEL, "the profiler counts a GPU's kernels"),
    Stage("copies", "Copies from the arena", 15, MODEL),
    Stage("tests", "Marked CUDA tests", 50, (*MODEL, "pytest")),
    Stage("memory", "Memory over ragged steps", 40, MODEL),
    Stage("ranks", "Two ranks on one device", 20, MODEL),
    Stage("pipeline", "Run from files", 35, (*MODEL, "pyarrow", "zmq")),
)
BUDGET_S = 480.0
