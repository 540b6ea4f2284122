"""Command of a child that is a module of Python: the one place where such a command is made."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_command(module: str, *arguments: str, anywhere: bool = False) -> list[str]:
    """Command that runs a module with this interpreter, and imports nothing from the working directory.

    `-m` alone searches there first, where anybody's `common/` or `markdown.py` would be run. Only icestream's own
    modules are found there if it is the folder with icestream's source, which is not installed, perhaps.
    ``anywhere``: the child starts in another working directory.
    """
    is_found_here = not anywhere and (ROOT / module.partition(".")[0]).is_dir() and Path.cwd() == ROOT
    safe_path = [] if is_found_here else ["-P"]
    return [sys.executable, *safe_path, "-m", module, *arguments]
