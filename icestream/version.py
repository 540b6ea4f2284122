"""Versions of icestream and of what a training depends on. Imports no torch."""

from __future__ import annotations

import json
import platform
import runpy
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

COMMIT_FILE = "commit.json"
"""File in this package with the commit that it was built from: setup.py writes it."""
_HERE = Path(__file__).resolve().parent


def version_lines() -> list[str]:
    """Return the lines of `icestream --version`: icestream with its commit, Python, torch with its CUDA."""
    found = commit()
    torch = torch_version()
    return [
        f"icestream {version('icestream')}" + (f" (commit {found})" if found else ""),
        f"Python {platform.python_version()}",
        f"torch {torch[0]} ({f'CUDA {torch[1]}' if torch[1] else 'without CUDA'})" if torch else "torch: not installed",
    ]


def commit() -> str:
    """Return the commit of the checkout, or the one recorded in a built package; empty if it is unknown."""
    recorded = _HERE / COMMIT_FILE
    found = commit_of(_HERE.parent)
    return found or (str(json.loads(recorded.read_text())) if recorded.is_file() else "")


def commit_of(root: Path) -> str:
    """Return the commit of a checkout, and `-dirty` if files were changed; empty without a checkout or git."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # no git, or a checkout of another user
        return ""


def torch_version() -> tuple[str, str] | None:
    """Return the versions of torch and of its CUDA (empty: without), from its version file; None if not installed."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    values = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    return values["__version__"], values.get("cuda") or ""
