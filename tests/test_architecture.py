"""What may import what, read from the sources."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

ROOMS = ("common", "workloads", "services", "icestream")
"""From the ground up: a file imports from its own room and from those before it."""
SERVICES = ("fetcher", "decoder", "trainer", "supervisor", "outputs")


def sources() -> list[Path]:
    return sorted(path for room in ROOMS for path in ROOT.glob(f"{room}/**/*.py"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Every node of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> Iterator[str]:
    """Every imported module, with the imported name behind a module that it is taken from."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_the_sources_are_found() -> None:
    assert len(sources()) > 50
    assert "common.errors.BadInputError" in set(imports(ROOT / "common/plan.py"))


def test_every_package_is_in_a_room() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages == set(ROOMS)


WORKLOADS = sorted(path.parent.name for path in ROOT.glob("workloads/*/__init__.py"))
MUONS = "workloads.muons.models."
NEVER: list[tuple[tuple[str, ...], list[str]]] = [
    *(((f"{room}/**/*.py",), list(ROOMS[number + 1 :])) for number, room in enumerate(ROOMS)),
    *(
        ((f"services/{own}.py", f"services/{own}/**/*.py"), [f"services.{one}" for one in SERVICES if one != own])
        for own in SERVICES
    ),
    (("services/config/*.py",), [f"services.{one}" for one in SERVICES]),
    *(
        ((f"workloads/{own}/**/*.py",), [f"workloads.{one}" for one in WORKLOADS if one not in (own, "base")])
        for own in WORKLOADS
    ),
    (("workloads/muons/models/likelihood*.py",), [f"{MUONS}wgan{part}" for part in ("", "_losses", "_networks")]),
    (("common/**/*.py", "services/config/**/*.py", *(f"{room}/**/config.py" for room in ROOMS)), ["torch"]),
]
"""Files, and what they never import: what lies above them, each other, and torch where a setting or a message is."""


@pytest.mark.parametrize(("files", "never"), NEVER, ids=lambda one: one[0] if one else "nothing")
def test_imports_go_down_only_and_equals_do_not_import_each_other(files: tuple[str, ...], never: list[str]) -> None:
    paths = [path for pattern in files for path in ROOT.glob(pattern)]
    assert paths
    for path in paths:
        found = [module for module in imports(path) if any(is_in(module, one) for one in never)]
        assert not found, f"{path.relative_to(ROOT)} imports {found}"


def test_no_pickle_is_read() -> None:
    for path in sources():
        name = path.relative_to(ROOT)
        modules = [module for module in imports(path) if module.split(".")[0] in ("pickle", "cloudpickle", "dill")]
        assert modules in ([], ["pickle"]), name
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pickle":
                assert node.attr == "UnpicklingError", f"{name}: pickle.{node.attr}"
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in node.keywords)


def test_no_child_imports_from_the_working_directory() -> None:
    """Each command of a module is made in one place, which says where the module may come from."""
    place = ROOT / "common" / "process.py"
    for path in sources():
        words = [node.value for node in nodes(path) if isinstance(node, ast.Constant)]
        assert path == place or "-m" not in words, f"{path.relative_to(ROOT)}: use python_command()"


def modules_after(code: str) -> set[str]:
    """What is imported in a fresh interpreter that ran ``code``."""
    script = f"{code}\nimport sys\nprint('MODULES', *sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("MODULES ")[2].split())


TORCH_FREE = (
    *("common", "icestream/cli.py", "icestream/commands/services.py", "workloads/registry.py", "services/config"),
    *("services/decoder", "services/fetcher", "services/outputs.py", "services/supervisor"),
)


@pytest.mark.process
def test_torch_is_imported_by_no_process_that_does_not_train() -> None:
    paths = [
        path for name in TORCH_FREE for path in ((ROOT / name).rglob("*.py") if "." not in name else [ROOT / name])
    ]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    assert len(names) > 40
    assert "torch" not in modules_after(f"import importlib\nfor name in {sorted(names)}: importlib.import_module(name)")


@pytest.mark.process
def test_a_decoder_imports_nothing_that_it_starts_slower_with() -> None:
    modules = modules_after("import icestream.commands.services, services.decoder.service")
    assert "pyarrow" in modules
    early = modules_after("import icestream.commands.services, services.config.root, icestream.cli")
    assert "common.memory" in early
    assert not early & {"numpy", "pyarrow"}, "it knows its number of threads before they are imported"
    assert not modules & {"torch", "scipy", "h5py", "tensorboard", "matplotlib", "fsspec", "rich", "prometheus_client"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("commands", "never"),
    [
        ("['--help']", {"torch", "pyarrow", "pydantic", "numpy", "zmq"}),
        (
            "['--version'], ['run', '--help'], ['trainer', '--help'], ['evaluate', '--help']",
            {"torch", "pyarrow", "fsspec", "zmq", "tensorboard", "matplotlib"},
        ),
        ("*([name, '--help'] for name, _, _ in listed())", {"torch"}),
    ],
)
def test_no_help_loads_what_takes_long(commands: str, never: set[str]) -> None:
    code = f"""
from icestream.cli import cli, listed
for words in [{commands}]:
    try:
        cli(words, prog_name="icestream")
    except SystemExit as end:
        assert not end.code, words
"""
    assert not never & modules_after(code)


@pytest.mark.process
def test_the_python_package_is_imported_at_once_and_its_functions_when_used() -> None:
    code = (
        "import icestream\nassert icestream.__version__[0].isdigit() and set(icestream.__all__) <= set(dir(icestream))"
    )
    assert not {"torch", "numpy", "pyarrow", "pydantic", "click"} & modules_after(code)
    assert "torch" not in modules_after("from icestream import BadInputError, evaluate, load, simulate")
