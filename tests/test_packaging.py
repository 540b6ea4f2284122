"""Wheel and sdist: built, installed into an environment of their own, and run outside of the checkout."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("icestream", "services", "workloads", "common")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="packages are built from a clone"),
]


def called(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Output of a command that must succeed, without this checkout on its path."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=inherited | environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@functools.cache
def project_files() -> list[str]:
    """Files of the clone as paths from its root, without those for CI."""
    listed = called("git", "ls-files", cwd=ROOT).splitlines()
    return [name for name in listed if not name.startswith(".ci/") and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source distribution of a copy of the project, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    for name in project_files():
        (folder / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "project" / name)
    called(sys.executable, "-c", BUILD, "build_sdist", folder, cwd=folder / "project")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Wheel, built from the sdist as pip does it."""
    called(sys.executable, "-c", BUILD, "build_wheel", sdist.parent, cwd=sdist)
    (found,) = sdist.parent.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the commands of an environment with the wheel; its other packages are those of this one."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    called(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment.parent)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    called(*pip, wheel, cwd=environment.parent)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    others = [path for path in sys.path if path.endswith("site-packages")] or [sysconfig.get_paths()["purelib"]]
    (environment / "lib" / version / "site-packages" / "others.pth").write_text("\n".join(others) + "\n")
    return python.parent


def test_the_sdist_has_every_file_of_the_project(sdist: Path) -> None:
    assert [name for name in project_files() if not (sdist / name).exists()] == []


def test_the_wheel_has_every_file_of_the_packages_and_no_other_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in project_files() if name.split("/")[0] in ROOMS and name not in names] == []
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(ROOMS)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_installed_command_simulates_and_streams_in_any_directory(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()  # as a user's folder may be called
    (tmp_path / "common" / "__init__.py").write_text("raise RuntimeError('not this one')")
    icestream = installed / "icestream"
    where = called(installed / "python", "-P", "-c", "import common; print(common.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)

    assert called(icestream, "--version", cwd=tmp_path).startswith("icestream 0.1.0\n"), "no commit: it is no checkout"
    called(icestream, "simulate", "demo", "--events", "2000", "--files", "2", cwd=tmp_path)
    called(icestream, "run", "-i", "demo", "--model", "none", "--run-dir", "out", cwd=tmp_path)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["exit_status"] == "finished"
    assert summary["events_trained"] == 2000
