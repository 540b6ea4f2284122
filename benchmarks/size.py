"""Count what a newcomer has to hold, against limits that may only fall.

Question: does the house grow back? `make lint` prints this table and fails above a limit. Command: `python -m
benchmarks.size`, `--rooms` for lines and files of each room, too.

A line is a line of the file. Code lines leave out blank lines, comments and docstrings; their part of all
lines shows whether lines were won by joining statements or by deleting comments.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("common", "services", "workloads", "icestream")
SOURCES = (".py", ".cpp", ".h")
DENSITY = (0.55, 0.7)
"""Least and largest part of the product's Python lines that are code."""

# Of each count: the limit that `make lint` holds, and the goal that the limit falls to.
LIMITS = {
    "product lines": (52_350, 46_000),
    "product files": (207, 207),
    "test lines": (47_800, 42_000),
    "settings": (105, 105),
    "words of pages": (42_500, 42_500),
}
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def tracked(*folders: str) -> list[Path]:
    """Return the files of these folders that git tracks, or would with the next `git add`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *folders]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(ROOT / name for name in names if name and (ROOT / name).exists())


def lines_of(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_bytes().splitlines())


def product() -> list[Path]:
    """Return the sources of the product."""
    return [path for path in tracked(*ROOMS) if path.suffix in SOURCES]


def pages() -> list[Path]:
    """Return the pages that people read."""
    return [path for path in tracked("*.md", "docs") if path.suffix == ".md" and path.parts[-2] != "results"]


def words_of(path: Path) -> int:
    """Return the number of words of a page."""
    return len(re.findall(r"\S+", path.read_text()))


def _docstring_lines(source: str) -> set[int]:
    """Return the numbers of the lines of docstrings, and of texts below fields."""
    return {
        number
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(path: Path) -> int:
    """Return the number of lines of a Python file that hold code."""
    source = path.read_text()
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - _docstring_lines(source))


def density() -> float:
    """Return the part of the product's Python lines that are code."""
    python = [path for path in product() if path.suffix == ".py"]
    return sum(map(code_lines, python)) / sum(map(lines_of, python))


def settings() -> int:
    """Return the number of settings, as `icestream config --keys` lists them."""
    command = [sys.executable, "-m", "icestream", "config", "--keys"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sum(1 for line in listed.splitlines() if line and not line.startswith(" "))


def counts() -> dict[str, int]:
    """Return each count of LIMITS."""
    sources = product()
    return {
        "product lines": sum(map(lines_of, sources)),
        "product files": len(sources),
        "test lines": sum(lines_of(path) for path in tracked("tests") if path.suffix == ".py"),
        "settings": settings(),
        "words of pages": sum(map(words_of, pages())),
    }


def rooms() -> None:
    """Print lines and files of each folder of the product."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in product():
        parts = path.relative_to(ROOT).parts[:-1]
        for depth in range(1, min(len(parts), 2) + 1):
            lines["/".join(parts[:depth])] += lines_of(path)
            files["/".join(parts[:depth])] += 1
    for room in sorted(lines):
        print(f"{room:28} {lines[room]:8,} lines {files[room]:5} files")


def main() -> int:
    """Print the table; return 1 if a count is above its limit."""
    if "--rooms" in sys.argv:
        rooms()
    above = False
    print(f"{'':30} {'now':>8} {'limit':>8} {'goal':>8}")
    for name, count in counts().items():
        limit, goal = LIMITS[name]
        above |= count > limit
        print(f"{name:30} {count:8,} {limit:8,} {goal:8,}{'   ABOVE THE LIMIT' if count > limit else ''}")
    least, most = DENSITY
    print(f"{'code in product lines':30} {density():8.2f} {f'{least} to {most}':>17}")
    return int(above or not least <= density() <= most)


if __name__ == "__main__":
    sys.exit(main())
