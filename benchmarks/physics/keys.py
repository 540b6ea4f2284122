"""Keys of stored results: digests of all that they depend on.

A result of the same settings and the same code is reused. Comments and docstrings do not count as code.
"""

from __future__ import annotations

import ast
import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.physics.runs import find
from benchmarks.physics.spec import Run
from workloads.muons.models.config import LikelihoodConfig, WganConfig

ROOT = Path(__file__).resolve().parents[2]
_HERE = "benchmarks/physics"
_EVENTS = (f"{_HERE}/data.py", f"{_HERE}/spec.py", "workloads/muons/simulator/")
_SHARED = (
    f"{_HERE}/models.py",
    *(f"workloads/base/{name}.py" for name in ("batch", "context", "optimiser", "random_streams", "segments")),
    "workloads/base/training.py",
    *(f"workloads/muons/models/{name}.py" for name in ("config", "count_head", "standardise")),
)
_LIKELIHOOD = (*(f"workloads/muons/models/{name}.py" for name in ("likelihood", "likelihood_densities")), *_SHARED)
_OF_MODEL = {
    "wgan": (*(f"workloads/muons/models/{name}.py" for name in ("wgan", "wgan_losses", "wgan_networks")), *_LIKELIHOOD),
    "likelihood": _LIKELIHOOD,
    "count head": _SHARED,
    "simulator": (),
}
_COUNT_SAMPLER = "workloads/muons/models/likelihood_densities.py"
"""Sampler of the count head alone; those of the models stand beside their networks."""
_EVALUATION = (
    *(f"{_HERE}/{name}.py" for name in ("evaluation", "muon_truth", "tails", "truth")),
    "workloads/muons/metrics/",
)


def training_key(run: Run) -> str:
    """Key of the final weights of a run."""
    before = training_key(find(run.start_from)) if run.start_from else ""
    fields = ("model", "seed", "steps", "batch_events", "source")
    settings = {name: asdict(run)[name] for name in fields} | ({"bf16": True} if run.bf16 else {})
    return _digest([settings, _resolved(run), before, code_digest((*_EVENTS, *_OF_MODEL[run.model]))])


def result_key(run: Run) -> str:
    """Key of the metrics of these weights."""
    fields = ("events", "generations", "tail_events", "c2st_events", "attention", "tuning")
    sampler = (_COUNT_SAMPLER,) if run.model == "count head" else ()
    settings = [asdict(run.judged_by or run.source), *(getattr(run, name) for name in fields)]
    return _digest([training_key(run), settings, code_digest((*_EVALUATION, *sampler))])


def result_path(run: Run, folder: Path) -> Path:
    """Path of a run's metrics."""
    return folder / "results" / f"{run.name}-{result_key(run)}.json"


def weights_path(run: Run, folder: Path) -> Path:
    """Path of a run's weights: one file for all runs with the same training."""
    return folder / "weights" / f"{training_key(run)}.pt"


def _resolved(run: Run) -> dict[str, Any]:
    """All settings, including defaults: a changed default is a changed run."""
    if run.model == "simulator":
        return {}
    return (wgan_config if run.model == "wgan" else likelihood_config)(run).model_dump()


def wgan_config(run: Run) -> WganConfig:
    """Configuration: the defaults, a schedule over the run's steps, and the run's own settings."""
    return WganConfig.model_validate({"schedule_steps": run.steps, **run.settings})


def likelihood_config(run: Run) -> LikelihoodConfig:
    """Configuration of the likelihood model, or of its count head alone, likewise."""
    return LikelihoodConfig.model_validate({"schedule_steps": run.steps, **run.settings})


@cache
def code_digest(paths: tuple[str, ...]) -> str:
    """Digest of Python files and folders, without comments, docstrings and layout. Paths are relative to the root."""
    found: list[Path] = []
    for path in paths:
        found += sorted((ROOT / path).glob("*.py")) if path.endswith("/") else [ROOT / path]
    return _digest([ast.dump(_without_docstrings(path.read_text())) for path in found])


def _without_docstrings(text: str) -> ast.Module:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            texts = [one for one in body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)]
            node.body = [one for one in body if one not in texts]  # type: ignore[attr-defined]
    return tree


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
