"""Writes docs/development/source-tree.md: `make docs`. A test compares it with the docstrings of the packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("icestream", "services", "workloads", "common")
"""From the front door down: each imports from those below it, and from no other."""
BESIDE = {
    "tests": "mirror of the tree; pipeline/: whole runs, federation/: a Pelican federation for tests",
    "benchmarks": "measurements with their question; results/: dated tables",
    "docs": "pages of four kinds, development/log.md: decisions and what did not work",
    "configs": "configurations to start from",
    "examples": "models of one's own: docs/how-to/custom-model.md",
}
PAGE = Path(__file__).parent / "development" / "source-tree.md"
_WIDTH = 30


def page() -> str:
    """The page as it should be."""
    rows = [*(row for room in ROOMS for row in _rows(ROOT / room, 0)), *(_row(0, *item) for item in BESIDE.items())]
    text = (
        "Imports go down only. Each file begins with a line that names its content; [extending.md](extending.md) says"
        " where a new one\ngoes. This page is written by `make docs`."
    )
    return f"# Source tree\n\n{text}\n\n" + "".join(f"    {row}\n" for row in rows)


def _rows(folder: Path, depth: int) -> Iterator[str]:
    about = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    yield _row(depth, folder.name, about.splitlines()[0])
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").exists():
            yield from _rows(path, depth + 1)


def _row(depth: int, name: str, about: str) -> str:
    return f"{'  ' * depth}{name}/".ljust(_WIDTH) + about


if __name__ == "__main__":
    PAGE.write_text(page())
