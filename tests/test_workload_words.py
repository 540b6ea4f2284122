"""Names of a workload's columns, models and metrics stand in folders of workloads, and nowhere in the engine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from workloads import registry
from workloads.direction.metrics.definitions import DEFINITIONS as OF_DIRECTIONS
from workloads.muons.metrics.definitions import DEFINITIONS as OF_MUONS

ROOT = Path(__file__).resolve().parent.parent
REGISTRY = ROOT / "workloads/registry.py"
WORKLOADS = registry.names()
EVALUATION_METRICS = {"muons": frozenset(OF_MUONS), "direction": frozenset(OF_DIRECTIONS)}


def words(name: str) -> frozenset[str]:
    """The workload's name, its columns and their fields, its file columns, its models and their metrics."""
    workload = registry.workload(name)
    found = {workload.name, *workload.models, *EVALUATION_METRICS.get(name, ())}
    for column in workload.schema.columns:
        found |= {column.name, *column.fields}
    for source in workload.schema.source_columns:
        found |= {*source.path, *source.also_seen}
    for model in workload.models.values():
        training = registry.imported(model.training)
        found |= {training.headline, *training.shown}
    return frozenset(found)


def sources() -> Iterator[Path]:
    """Every module of the engine. Workloads may share words of physics: test_architecture.py keeps them apart."""
    for room in ("common", "services", "icestream", "workloads/base"):
        yield from sorted((ROOT / room).rglob("*.py"))
    yield REGISTRY


def names_in(tree: ast.AST) -> Iterator[str]:
    """Identifiers, whole texts, and the compound words (with an underscore) of texts and docstrings."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Constant(value=str(text)):
                yield text
                yield from (word for word in re.findall(r"\w+", text) if "_" in word)
            case ast.ImportFrom(module=str(module)):
                yield from module.split(".")


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_engine_has_none_of_a_workloads_words(name: str) -> None:
    forbidden = words(name)
    assert len(forbidden) > 10
    for path in sources():
        found = forbidden & set(names_in(ast.parse(path.read_text())))
        if path == REGISTRY:
            found -= {registry.DEFAULT}
        assert not found, f"{path.relative_to(ROOT)} names {sorted(found)} of the workload {name}"


def test_the_words_are_found_wherever_a_module_may_have_them() -> None:
    found = set(
        names_in(
            ast.parse(
                '''"""Docstring with energy_gev in it."""
from workloads.muons import columns
muons = 1
status.w_gap = f(mass_a=2)
def g_loss(primary_id): return ["primary", "shown as c_loss"]
'''
            )
        )
    )
    assert found >= {"energy_gev", "muons", "w_gap", "mass_a", "g_loss", "primary_id", "primary", "c_loss"}


def test_the_engines_texts_name_no_particle() -> None:
    for path in sources():
        if path != REGISTRY and path.relative_to(ROOT).parts[0] != "icestream":  # examples of commands
            assert "muon" not in path.read_text().lower(), path.relative_to(ROOT)
