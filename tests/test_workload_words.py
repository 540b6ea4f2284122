"""Names of one workload's columns, models and metrics stand in its own folder, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from workloads import registry
from workloads.muons.metrics.definitions import DEFINITIONS

ROOT = Path(__file__).resolve().parent.parent
WORKLOADS = registry.names()
EVALUATION_METRICS = {"muons": frozenset(DEFINITIONS)}
NAMED_BY_ALL = {"workloads/registry.py"}
"""The default workload is named here."""


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


def sources(name: str) -> Iterator[Path]:
    """Every module outside of the workload's folder."""
    for room in ("common", "services", "icestream", "workloads"):
        for path in sorted((ROOT / room).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if relative.parts[:2] != ("workloads", name) and str(relative) not in NAMED_BY_ALL:
                yield path


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
def test_a_workloads_words_stand_in_its_own_folder_only(name: str) -> None:
    forbidden = words(name)
    assert len(forbidden) > 10
    for path in sources(name):
        found = forbidden & set(names_in(ast.parse(path.read_text())))
        assert not found, f"{path.relative_to(ROOT)} names {sorted(found)} of the workload {name}"


def test_the_words_are_found_wherever_a_module_may_have_them() -> None:
    found = set(
        names_in(
            ast.parse(
                '''"""Docstring with energy_gev in it."""
from workloads.muons import columns
muons = 1
status.w_gap = f(mass_a=2)
def flow_loss(primary_id): return ["primary", "shown as c_loss"]
'''
            )
        )
    )
    assert found >= {"energy_gev", "muons", "w_gap", "mass_a", "flow_loss", "primary_id", "primary", "c_loss"}


def test_the_engines_texts_name_no_particle() -> None:
    for path in sources("muons"):
        if path.relative_to(ROOT).parts[0] != "icestream":  # examples of commands
            assert "muon" not in path.read_text().lower(), path.relative_to(ROOT)
