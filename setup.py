"""Record of the commit in wheels and sdists built from a checkout, for `icestream --version`; see pyproject.toml."""

import json
import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
VERSION = runpy.run_path(str(ROOT / "icestream" / "version.py"))


def record(package: Path) -> None:
    """Write the commit of this checkout into a built package; an sdist has brought its own."""
    found = VERSION["commit_of"](ROOT)
    if found and package.is_dir():
        (package / VERSION["COMMIT_FILE"]).write_text(json.dumps(found) + "\n")


class BuildWithCommit(build_py):
    """Packages of a wheel."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            record(Path(self.build_lib, "icestream"))


class SdistWithCommit(sdist):
    """Source distribution."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        record(Path(base_dir, "icestream"))


setup(cmdclass={"build_py": BuildWithCommit, "sdist": SdistWithCommit})
