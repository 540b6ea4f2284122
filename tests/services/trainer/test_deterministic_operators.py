"""`trainer.deterministic` on CUDA, as far as a CPU can show: every operator of a step has a deterministic kernel."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_operators import ROOT, recorded_operators
from direction_events import GEOMETRY, direction_batch
from toy_events import split, toy_batch

from services.trainer.state import WindowedMean
from workloads import registry
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.direction.geometry import write_geometry

BATCHES: dict[str, Callable[[], list[Batch]]] = {
    "muons": lambda: [toy_batch(), split(toy_batch(counts=[*range(8)] * 4), [10, 0, 22])],
    "direction": lambda: [direction_batch(8), direction_batch(counts=[0, 60, 1, 7], seed=1)],
}
"""Batches of each workload, the first for its standardisation."""
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "wgan": [{"network": {"azimuth": "learned"}}, {"chunk_particles": 16}],
    "sets": [{"symmetry": "none"}],
}
"""Settings that make a step use other operators, besides the defaults and the files of configs/."""
HARMLESS = {
    ("scatter", "workloads/direction/light.py"): "inverse of a permutation",
    ("index_copy", "workloads/direction/models/network.py"): "a row for each sensor, once",
    ("index_put", "workloads/direction/models/transformer.py"): "a place for each sensor, once",
    ("index_copy", "workloads/direction/models/flat.py"): "a row for each sensor, once",
}
"""Operators that write each element at most once, so that their order can't matter; once a step, so that the slower
kernels of the deterministic mode don't either."""


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def settings() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Name, workload, model and section: of each model's defaults, of each file of configs/, and of VARIANTS."""
    for workload in registry.every_workload():
        for model in workload.models:
            yield f"{model}: defaults", workload.name, model, {}
            for number, section in enumerate(VARIANTS.get(model, [])):
                yield f"{model}: variant {number}", workload.name, model, section
            for path in sorted((ROOT / "configs").glob("*.toml")):
                trainer = tomllib.loads(path.read_text()).get("trainer", {})
                if trainer.get("model", registry.workload(registry.DEFAULT).default_model) == model:
                    yield f"{model}: {path.name}", workload.name, model, trainer.get(model, {})


SETTINGS = list(settings())


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "model", "section"), [one[1:] for one in SETTINGS], ids=[s[0] for s in SETTINGS])
def test_every_operator_of_a_step_and_of_the_panel_has_a_deterministic_cuda_kernel(
    tmp_path: Path, workload: str, model: str, section: dict[str, Any]
) -> None:
    of_model = registry.workload(workload).models[model]
    if "geometry" in of_model.config.model_fields:
        write_geometry(tmp_path / "geometry.csv", GEOMETRY)
        section = section | {"geometry": str(tmp_path / "geometry.csv")}
    section = section | ({"likelihood_steps": 1} if model == "wgan" else {})
    training = registry.loaded(of_model.training)
    task = training.task(of_model.config.model_validate(section), StepContext(torch.device("cpu"), seed=1))
    mean = WindowedMean(500, torch.device("cpu"))
    with recorded_operators() as found:
        for batch in BATCHES[workload]():
            mean.add(task.step(batch)[training.headline])
            mean.mean()
    evaluator = training.evaluator(task, 1)
    with recorded_operators() as of_panel:
        evaluator.evaluate(batch)
    assert [one for one in of_panel if one[0] == "raising"] == []
    assert {(name, file) for _, name, file in found} <= set(HARMLESS), "deterministic mode: these raise, or are slow"
