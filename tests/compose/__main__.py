"""Whole runs in containers: ``python -m tests.compose``, or `make test-compose`. Needs root, or an engine that runs.

Without an engine it ends with 0 and says why; with REQUIRE_COMPOSE=1 that is a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .engine import NoEngine, engine
from .images import base_image, package_index
from .project import ComposeProject, clone
from .stages import decoders_come_and_go, federation_input, fresh_clone, old_names_and_wrong_paths


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # everything is ended as after Ctrl-C
    workdir = Path(tempfile.mkdtemp(prefix="compose-"))
    workdir.chmod(0o755)  # uid 1000 of the containers reads the data below
    began_s = time.monotonic()

    def tell(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began_s:6.1f} s  {text}\n")
        sys.stdout.flush()

    try:
        with engine(workdir):
            _test(workdir, tell)
    except NoEngine as error:
        required = os.environ.get("REQUIRE_COMPOSE") == "1"
        sys.stdout.write(f"{'FAILED' if required else 'SKIPPED'}: no run in containers: {error}\n")
        return 1 if required else 0
    finally:
        shutil.rmtree(workdir)
    return 0


def _test(workdir: Path, tell: Callable[[str], None]) -> None:
    checkout = clone(workdir / "checkout")
    with base_image():
        tell("base image")
        _build(checkout, workdir)
        tell("images built")
        for stage in (old_names_and_wrong_paths, fresh_clone, decoders_come_and_go, federation_input):
            name = stage.__name__
            tell(f"{name}: {stage(checkout, workdir / name)}")


def _build(checkout: Path, workdir: Path) -> None:
    """Build the images as `docker compose build` does, with this machine's package index."""
    with package_index() as arguments:
        lines = "".join(f"        {name}: {value!r}\n" for name, value in arguments.items())
        build = "    build:\n      network: host\n" + (f"      args:\n{lines}" if lines else "")
        override = workdir / "build.yml"
        override.write_text(f"services:\n  demo:\n{build}  trainer:\n{build}")
        ComposeProject(checkout, "icestream-build", files=[override]).compose("build", "demo", "trainer")


if __name__ == "__main__":
    sys.exit(main())
