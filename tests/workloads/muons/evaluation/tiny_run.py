"""A run directory with the checkpoint of a model that was trained for three steps."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from toy_events import make_microbatch

from services.config.root import Config
from services.trainer.service import training_of
from services.trainer.state import TrainState
from workloads.base.batch import Batch
from workloads.base.checkpoint import CHECKPOINT_FOLDER, FORMAT
from workloads.base.context import StepContext
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.muons import sample_primaries, simulate

SECTIONS: dict[str, dict[str, Any]] = {
    "wgan": {"network": {"hidden": 16}, "critic_steps": 1, "likelihood_steps": 1},
    "likelihood": {"network": {"hidden": 8}},
}


def write_tiny_run(run_dir: Path, inputs: tuple[str, ...] = (), *, held_out: float = 0.0, model: str = "wgan") -> Path:
    """The checkpoint's path."""
    trainer = {"model": model, model: SECTIONS[model]}
    config = Config.model_validate({"input": inputs, "stream": {"held_out": held_out}, "trainer": trainer})
    path = run_dir / CHECKPOINT_FOLDER / "step-000000003.pt"
    path.parent.mkdir(parents=True)
    torch.save({"format": FORMAT, **_trained(model).checkpoint(config.model_dump_json()), "score": None}, path)
    return path


@cache
def _trained(model: str) -> TrainState:
    """A model is trained once: neither inputs nor what is held out matter to it."""
    torch.manual_seed(1)
    config = Config.model_validate({"trainer": {"model": model, model: SECTIONS[model]}})
    training = training_of(config)
    task = training.task(config.trainer.of_model, StepContext(torch.device("cpu"), 1))
    for seed in range(3):
        task.step(_batch(seed))
    state = TrainState(task, torch.device("cpu"), "plan", headline=training.headline)
    state.step = 3
    return state


def _batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    bundles = simulate(sample_primaries(256, preset("bench"), rng), preset("bench"), rng)
    return Batch((make_microbatch(*map(torch.from_numpy, (bundles.primary_E4, bundles.counts_E, bundles.muons_P3))),))
