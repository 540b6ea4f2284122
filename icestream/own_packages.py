"""Check that `common`, `services` and `workloads` are icestream's own, not another program's of the same names."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

NAMES = ("common", "services", "workloads")
"""Top-level packages of the distribution besides `icestream`."""


def check_own_packages() -> None:
    """Raise ImportError, with the remedy, where another package hides one of icestream's."""
    root = Path(__file__).resolve().parents[1]
    for name in NAMES:
        spec = find_spec(name)
        found = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
        if not found:
            raise ImportError(f"icestream: its package '{name}' is missing in {root}: install icestream again")
        if not Path(found).resolve().is_relative_to(root / name):
            raise ImportError(
                f"icestream: its package '{name}' is hidden by {found}, which Python finds first: rename that, "
                "or take its directory out of PYTHONPATH and of the working directory"
            )
