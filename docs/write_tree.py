"""Writes the file tree of the README: `make docs`. A test holds it to the docstrings of the packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
ROOMS = ("icestream", "services", "workloads", "common")
"""From the front door down: each imports from those below it, and from no other."""
BESIDE = {
    "tests": "mirror of the tree; pipeline/: whole runs, federation/: a Pelican federation for tests",
    "benchmarks": "measurements with their question; results/: dated tables",
    "docs": "pages; log.md: decisions and what did not work",
    "configs": "configurations to start from",
}
HEADING = "## Files"
_WIDTH = 30


def section() -> str:
    """The section of the README as it should be."""
    rows = [*(row for room in ROOMS for row in _rows(ROOT / room, 0)), *(_row(0, *item) for item in BESIDE.items())]
    text = (
        "Imports go down only. Each file begins with a line that names its content;"
        " [extending.md](docs/extending.md) says\nwhere a new one goes."
    )
    return f"{HEADING}\n\n{text}\n\n" + "".join(f"    {row}\n" for row in rows)


def _rows(folder: Path, depth: int) -> Iterator[str]:
    about = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    yield _row(depth, folder.name, about.splitlines()[0])
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").exists():
            yield from _rows(path, depth + 1)


def _row(depth: int, name: str, about: str) -> str:
    return f"{'  ' * depth}{name}/".ljust(_WIDTH) + about


def main() -> None:
    """Replace the section."""
    readme = README.read_text()
    start = readme.index(HEADING)
    end = readme.find("\n## ", start)
    README.write_text(readme[:start] + section() + (readme[end:] if end > 0 else ""))


if __name__ == "__main__":
    main()
