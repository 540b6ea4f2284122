"""Table of promises in docs/explanation/architecture.md: its tests exist, and every test of whole runs is in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ONLY_WITH_PROCESSES = {13}
"""What a person types is tested as it is typed."""


def promises() -> dict[int, list[str]]:
    """Number of each promise -> the files that hold it."""
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    rows = re.findall(r"^\| (\d+) \| \*\*.*\| ([^|]+) \|$", text, re.M)
    return {int(number): re.findall(r"`([^`]+)`", held_by) for number, held_by in rows}


def fast_tests_of(path: Path) -> list[str]:
    """Names of a file's tests that have no marker `process` or `slow`."""
    tree = ast.parse(path.read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    of_all = [node for node in tree.body if isinstance(node, ast.Assign)]
    # Any other assignment may hold marks of some parameters.
    if any(is_marked(node) for node in of_all if ast.unparse(node).startswith("pytestmark ")):
        return []
    return [each.name for each in functions if not any(is_marked(mark) for mark in each.decorator_list)]


def is_marked(node: ast.AST) -> bool:
    return re.search(r"mark\.(process|slow)\b", ast.unparse(node)) is not None


def test_the_promises_are_numbered() -> None:
    assert list(promises()) == list(range(1, 19))


@pytest.mark.parametrize("number", promises())
def test_a_promise_is_held_by_tests_that_are_there(number: int) -> None:
    paths = [ROOT / name for name in promises()[number]]
    assert paths
    assert [path for path in paths if not path.is_file()] == []
    assert all("def test_" in path.read_text() for path in paths if path.is_relative_to(ROOT / "tests"))


@pytest.mark.parametrize("number", sorted(promises().keys() - ONLY_WITH_PROCESSES))
def test_a_promise_has_fast_tests(number: int) -> None:
    paths = [ROOT / name for name in promises()[number] if not name.startswith("tests/pipeline/")]
    assert any(fast_tests_of(path) for path in paths)


def test_every_test_of_whole_runs_holds_a_promise() -> None:
    named = {name for names in promises().values() for name in names}
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "pipeline").glob("test_*.py")}
    assert files - named == set()
