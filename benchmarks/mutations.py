"""Count how many small random faults the quick tests notice, today and at an earlier commit.

Question: were behaviours deleted with the tests, or repetitions? Command: `python -m benchmarks.mutations --before
48539457 --faults 40`. The result is a table of faults, one line each, and two sums; interrupted, it starts anew.

A fault is put into a statement that both trees have once and alike: a comparison, a sum, a number, an `and`, a `not`,
or a call left out. Tests that start processes or need an engine are left out: they notice more, and take hours.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Of each part: files of the product in either tree, and the folders of its tests.
PARTS = {
    "dispatcher": (("services/fetcher/dispatcher*",), ("tests/services/fetcher",)),
    "plan": (("common/plan*", "services/fetcher/planner*"), ("tests/common", "tests/services/fetcher")),
    "decode": (("services/decoder/*",), ("tests/services/decoder",)),
    "feed": (
        ("services/trainer/feed*", "services/trainer/units*", "services/trainer/stream/*"),
        ("tests/services/trainer",),
    ),
    "checkpoints": (
        ("services/trainer/c[ho][em]*", "services/trainer/position*"),
        ("tests/services/trainer",),
    ),
    "losses": (
        ("workloads/muons/models/wgan*", "workloads/muons/models/likelihood*"),
        ("tests/workloads/muons/models",),
    ),
}
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_SLOW = "process slow engine"
_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)


@dataclass(frozen=True)
class Place:
    """A statement of a file, or the condition of one."""

    path: Path
    node: ast.stmt | ast.expr


@dataclass(frozen=True)
class Fault:
    """A fault, and where it stands in each tree."""

    part: str
    places: dict[str, Place]
    text: str
    faulty: str


def main() -> int:
    """Return 0 if today's tests notice as many faults as those of the earlier commit; 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="commit to compare with")
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        trees = {"before": Path(folder, "before"), "now": Path(folder, "now")}
        _check_out(arguments.before, trees["before"])
        _check_out("HEAD", trees["now"])
        faults = list(_faults(trees["before"], trees["now"]))
        chosen = _chosen(faults, arguments.faults, random.Random(arguments.seed))
        for name, tree in trees.items():
            for part in PARTS:
                if _fails(tree, _tests(tree, part)):
                    raise SystemExit(f"tests of {part} fail {name} without any fault: mend them first")
        noticed: Counter[str] = Counter()
        for number, fault in enumerate(chosen, start=1):
            row = [str(number), fault.places["now"].path.name, fault.text, fault.faulty]
            for name, tree in trees.items():
                seen = _noticed(tree, fault.part, fault.places[name], fault.faulty)
                noticed[name] += seen
                row.append("noticed" if seen else "not noticed")
            print("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |", flush=True)
    print(f"{noticed['before']} of {len(chosen)} before, {noticed['now']} now")
    return 0 if noticed["now"] >= noticed["before"] else 1


def _check_out(commit: str, folder: Path) -> None:
    folder.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)


def _faults(before: Path, now: Path) -> Iterator[Fault]:
    """Yield every fault that can be put into both trees."""
    for part, (patterns, _) in PARTS.items():
        places = {"before": _places(before, patterns), "now": _places(now, patterns)}
        for text in sorted(places["before"].keys() & places["now"].keys()):
            for faulty in _variants(places["now"][text].node):
                yield Fault(part, {name: places[name][text] for name in places}, text, faulty)


def _places(tree: Path, patterns: tuple[str, ...]) -> dict[str, Place]:
    """Return the statements of these files that occur once, by their text."""
    counts: Counter[str] = Counter()
    places = {}
    files = {path for pattern in patterns for start in tree.glob(pattern) for path in _sources(start)}
    for path in sorted(files):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for statement in ast.walk(function):
                if isinstance(statement, ast.If | ast.While):
                    node: ast.stmt | ast.expr = statement.test
                elif isinstance(statement, _SIMPLE):
                    node = statement
                else:
                    continue
                text = ast.unparse(node)
                counts[text] += 1
                places[text] = Place(path, node)
    return {text: place for text, place in places.items() if counts[text] == 1}


def _sources(start: Path) -> list[Path]:
    return sorted(start.rglob("*.py")) if start.is_dir() else [start] if start.suffix == ".py" else []


def _variants(node: ast.AST) -> Iterator[str]:
    """Yield the text of a statement with one fault, for each that it can have."""
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Call):
            yield "pass"
        return
    for inner in ast.walk(node):
        if isinstance(inner, ast.Compare) and type(inner.ops[0]) in _SWAPS:
            first = inner.ops[0]
            inner.ops[0] = _SWAPS[type(first)]()  # type: ignore[call-overload]
            yield ast.unparse(node)
            inner.ops[0] = first
        elif isinstance(inner, ast.BinOp | ast.BoolOp) and type(inner.op) in _SWAPS:
            operator = inner.op
            inner.op = _SWAPS[type(operator)]()  # type: ignore[assignment]
            yield ast.unparse(node)
            inner.op = operator
        elif isinstance(inner, ast.Constant) and type(inner.value) is int:
            inner.value += 1
            yield ast.unparse(node)
            inner.value -= 1
        elif isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.Not):
            yield ast.unparse(node).replace(ast.unparse(inner), ast.unparse(inner.operand), 1)


def _chosen(faults: list[Fault], count: int, chance: random.Random) -> list[Fault]:
    """Return faults, as many of each part as of the others, and at most one in a statement."""
    chance.shuffle(faults)
    by_statement = {(fault.part, fault.text): fault for fault in faults}
    of_part = {part: [fault for fault in by_statement.values() if fault.part == part] for part in PARTS}
    turns = [fault for turn in zip_longest(*of_part.values()) for fault in turn if fault is not None]
    return turns[:count]


def _noticed(tree: Path, part: str, place: Place, faulty: str) -> bool:
    """Return whether a quick test of the part fails with the fault: those that name the file first."""
    source = place.path.read_text()
    lines = source.splitlines(keepends=True)
    node = place.node
    last = node.end_lineno or node.lineno
    start = len("".join(lines[: node.lineno - 1]).encode()) + node.col_offset
    end = len("".join(lines[: last - 1]).encode()) + (node.end_col_offset or 0)
    content = source.encode()
    place.path.write_bytes(content[:start] + faulty.encode() + content[end:])
    try:
        tests = _tests(tree, part)
        module = ".".join(place.path.relative_to(tree).with_suffix("").parts)
        near = [path for path in tests if module in path.read_text()]
        return _fails(tree, near) or _fails(tree, [path for path in tests if path not in near])
    finally:
        place.path.write_text(source)


def _tests(tree: Path, part: str) -> list[Path]:
    return sorted({path for folder in PARTS[part][1] for path in (tree / folder).rglob("test_*.py")})


def _fails(tree: Path, tests: list[Path]) -> bool:
    if not tests:
        return False
    # A tree refuses the name of a marker that it doesn't know.
    marks = [mark for mark in _SLOW.split() if f'"{mark}:' in (tree / "pyproject.toml").read_text()]
    quick = " and ".join(f"not {mark}" for mark in marks)
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", "-m", quick]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*pytest, *map(str, tests)], cwd=tree, env=environment, capture_output=True, timeout=900, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    # 5: no test was left after -m.
    return done.returncode not in (0, 5)


if __name__ == "__main__":
    sys.exit(main())
