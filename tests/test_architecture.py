"""Architecture is a test: who imports whom, and what a pure module may not touch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("fetcher", "decoder", "trainer", "simulator")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for folder in ("common", "services")
    for path in ROOT.glob(f"{folder}/**/*.py")
}
CONFIG_MODULES = [name for name in MODULES if name.endswith(".config")]
PURE_MODULES = [
    "common.messages",
    "common.metrics",
    "common.ragged",
    "common.schema",
    "common.streams",
    "services.fetcher.dispatcher",
    "services.fetcher.plan",
    "services.fetcher.stage_ahead",
    "services.decoder.microbatch",
    "services.decoder.rows",
    "services.restart",
    "services.trainer.position",
]
IMPURE = {"os", "socket", "time", "threading", "subprocess", "sqlite3", "zmq", "signal", "mmap", "pathlib", "random"}
KNOW_NO_MUON = [
    name
    for name in MODULES
    if name.startswith(("common.", "services.fetcher.", "services.decoder."))
    or name
    in {f"services.trainer.{part}" for part in ("loop", "feed", "state", "copier", "position", "audit", "batch")}
    if name != "common.schema"
]


def imports(name: str) -> set[str]:
    """Every module that a module imports anywhere, in full."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def service_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "services" and len(parts) > 1 and parts[1] in SERVICES else None


@pytest.mark.parametrize("name", [name for name in MODULES if service_of(name)])
def test_a_service_never_imports_another(name: str) -> None:
    others = {module for module in imports(name) if service_of(module) not in (None, service_of(name))}
    assert not others


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("common")])
def test_common_imports_no_service_and_no_torch(name: str) -> None:
    assert not {module for module in imports(name) if module.split(".")[0] in ("services", "torch")}


@pytest.mark.parametrize("name", CONFIG_MODULES)
def test_a_config_module_imports_only_config_modules_and_no_torch(name: str) -> None:
    for module in imports(name):
        assert module.split(".")[0] != "torch"
        if module in MODULES:
            assert module in CONFIG_MODULES or module == "common.errors"


@pytest.mark.parametrize("name", PURE_MODULES)
def test_a_pure_module_touches_nothing_of_the_world(name: str) -> None:
    assert not {module.split(".")[0] for module in imports(name)} & IMPURE


@pytest.mark.parametrize("name", list(MODULES))
def test_nothing_is_pickled(name: str) -> None:
    unpickles = {"pickle", "dill", "cloudpickle", "marshal", "shelve"} & {m.split(".")[0] for m in imports(name)}
    if name == "services.trainer.checkpoint":
        # It names the error that torch raises when a checkpoint holds more than tensors and numbers.
        assert "pickle.UnpicklingError" in MODULES[name].read_text()
        assert MODULES[name].read_text().count("pickle.") == 1
    else:
        assert not unpickles
    assert "weights_only=False" not in MODULES[name].read_text()


@pytest.mark.parametrize("name", KNOW_NO_MUON)
def test_the_pipeline_does_not_know_what_a_muon_is(name: str) -> None:
    words = [line for line in MODULES[name].read_text().lower().splitlines() if "muon" in line]
    assert not words


def heavy_modules(statement: str) -> set[str]:
    """Of the heavy packages, those that a fresh interpreter has loaded after a statement."""
    heavy = ("torch", "pyarrow", "pydantic", "numpy", "rich", "zmq")
    code = f"import sys\n{statement}\nprint(*[name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    return set(result.stdout.splitlines()[-1].split())


def test_asking_for_help_loads_nothing_heavy() -> None:
    ask = "from services.cli import cli\ntry:\n    cli(['--help'])\nexcept SystemExit:\n    pass"
    assert heavy_modules(ask) == set()


def test_a_decoder_and_a_fetcher_start_without_torch() -> None:
    assert "torch" not in heavy_modules("import services.decoder.command, services.fetcher.command")
    assert "torch" not in heavy_modules("import services.local_command, services.supervisor, services.progress")


@pytest.mark.parametrize("name", list(MODULES))
def test_every_module_says_what_it_is_for(name: str) -> None:
    assert ast.get_docstring(ast.parse(MODULES[name].read_text())), f"{name} has no docstring"
