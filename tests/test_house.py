"""Sizes and names that keep the tree readable: lines of a file, lines of a function, one public class a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("common", "services", "workloads", "icestream")
ALL = (*PRODUCT, "benchmarks", "tests")
MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Path and text of every module below these folders."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def function_lines(function: Function) -> int:
    """Lines of a function without its docstring.

    From `def` to its end. Of a click command, whose signature and decorators are the list of its options: from the
    first statement behind the docstring.
    """
    body = function.body
    has_docstring = ast.get_docstring(function, clean=False) is not None
    statements = body[1:] if has_docstring and len(body) > 1 else body
    if any(_name_of(decorator).endswith(("command", "group")) for decorator in function.decorator_list):
        return _end_of(function) - statements[0].lineno + 1
    docstring = _end_of(body[0]) - body[0].lineno + 1 if has_docstring else 0
    return _end_of(function) - function.lineno + 1 - docstring


def _name_of(decorator: ast.expr) -> str:
    """`click.command` of `@click.command("run")`."""
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _end_of(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def long_functions(path: str, source: str) -> set[str]:
    """`path::name` of the functions and methods of a module that are too long."""
    return {
        f"{path}::{node.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, Function) and function_lines(node) > MOST_FUNCTION_LINES
    }


def shared_names(modules: Mapping[str, str]) -> dict[str, list[str]]:
    """Names that public classes of several modules have, with the modules."""
    owners = defaultdict(list)
    for path, source in modules.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners[node.name].append(path)
    return {name: paths for name, paths in owners.items() if len(paths) > 1}


def test_no_file_is_longer_than_one_can_keep_in_mind() -> None:
    assert not {path for path, source in sources(ALL) if len(source.splitlines()) > MOST_FILE_LINES}


def test_no_function_is_longer_than_a_screen() -> None:
    assert not {name for path, source in sources(ALL) for name in long_functions(path, source)}


def test_a_name_of_a_public_class_says_which_one_it_is() -> None:
    assert not shared_names(dict(sources(PRODUCT)))


# ------------------------------------------------------------------ the counting itself


def lines_of(source: str) -> int:
    (function,) = ast.parse(source).body
    assert isinstance(function, Function)
    return function_lines(function)


def test_a_function_is_counted_from_its_signature_to_its_end_without_its_docstring() -> None:
    assert (
        lines_of('@cached\ndef f(\n    a,\n    b,\n):\n    """Two\n\n    lines."""\n    c = a\n\n    return c\n') == 7
    )
    assert lines_of("def f():\n    return 1\n") == 2
    assert lines_of('def f():\n    """Nothing."""\n') == 1


def test_of_a_command_only_its_statements_are_counted() -> None:
    options = '@click.option("--a")\ndef f(\n    a,\n):\n    """Help."""\n    b = a\n    print(b)\n'
    assert lines_of('@click.command("f")\n' + options) == 2
    assert lines_of("@cli.command\n" + options) == 2
    assert lines_of(options) == 5


def test_a_long_function_is_found_wherever_it_is_nested() -> None:
    method = "class A:\n    async def f(self):\n" + "        x = 1\n" * (MOST_FUNCTION_LINES - 1)
    assert long_functions("a.py", method) == set()
    assert long_functions("a.py", method + "        x = 1\n") == {"a.py::f"}


def test_only_public_classes_at_the_top_of_a_module_count_as_a_name() -> None:
    modules = {"a.py": "class A: ...\nclass _B: ...", "b.py": "class A: ...\nclass _B: ...\nclass C:\n  class A: ..."}
    assert shared_names(modules) == {"A": ["a.py", "b.py"]}


def test_no_example_of_hypothesis_has_to_be_quick() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
