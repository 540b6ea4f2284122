"""Names of a run's services, and the command of each."""

from __future__ import annotations

import sys
from pathlib import Path

FETCHER = "fetcher"
TRAINER = "trainer"
LOGS_FOLDER = "logs"


def service_of(name: str) -> str:
    """Service of the process ``name``: decoder-1 is a decoder."""
    return name.partition("-")[0]


def service_command(name: str, run_dir: Path) -> list[str]:
    """Command of the real service, with this interpreter and this package."""
    return module_command("icestream", service_of(name), "--run-dir", str(run_dir))


def module_command(module: str, *arguments: str) -> list[str]:
    """Command that runs a module of this package with this interpreter."""
    package_root = Path(__file__).resolve().parents[2]
    # `-m` searches the working directory first, where a user's folder `common/` would hide ours.
    safe_path = [] if Path.cwd() == package_root else ["-P"]
    return [sys.executable, *safe_path, "-m", module, *arguments]
