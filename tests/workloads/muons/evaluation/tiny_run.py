"""A run directory with the checkpoint of a model that was trained for three steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

from common.tensorboard_names import TENSORBOARD_FOLDER
from services.config.root import Config
from services.trainer.state import TrainState
from workloads.base.batch import Batch, Microbatch
from workloads.base.checkpoint import CHECKPOINT_FOLDER, FORMAT
from workloads.base.context import StepContext
from workloads.base.task import Task
from workloads.muons.models.likelihood.task import LikelihoodTask
from workloads.muons.models.wgan.task import WganTask
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.flux import sample_primaries
from workloads.muons.simulator.muons import simulate

NETWORK = {"hidden": 16, "count_hidden": 16, "z_global": 4, "z_local": 4}


def write_tiny_run(
    run_dir: Path, inputs: tuple[str, ...] = (), *, max_count: int = 100_000, held_out: float = 0.0
) -> Path:
    """The checkpoint's path."""
    wgan = {"network": NETWORK, "sampling": {"max_count": max_count}, "critic_steps": 1}
    config = Config.model_validate({"input": inputs, "stream": {"held_out": held_out}, "trainer": {"wgan": wgan}})
    return _trained(run_dir, config, WganTask, headline="w_gap")


def write_tiny_likelihood_run(run_dir: Path, *, max_count: int = 100_000) -> Path:
    """The checkpoint's path."""
    network = {"hidden": 8, "count_hidden": 8, "components": 2}
    trainer = {"model": "likelihood", "likelihood": {"network": network, "max_count": max_count}}
    return _trained(run_dir, Config.model_validate({"trainer": trainer}), LikelihoodTask, headline="muon_nll")


def _trained(run_dir: Path, config: Config, build: Callable[[Any, StepContext], Task], *, headline: str) -> Path:
    torch.manual_seed(1)
    task = build(getattr(config.trainer, config.trainer.model), StepContext(torch.device("cpu"), 1))
    for seed in range(3):
        task.step(_batch(seed))
    state = TrainState(task, torch.device("cpu"), "plan", headline=headline)
    state.step = 3
    path = run_dir / CHECKPOINT_FOLDER / "step-000000003.pt"
    path.parent.mkdir(parents=True)
    torch.save({"format": FORMAT, **state.checkpoint(config.model_dump_json()), "score": None}, path)
    return path


def write_panel_scalars(run_dir: Path) -> None:
    """What a run tells TensorBoard of its panel."""
    writer = SummaryWriter(str(run_dir / TENSORBOARD_FOLDER / "2026-11-21T00-00-00"))
    for step in (1, 2, 3):
        writer.add_scalar("panel/log10_energy_w1", 1.0 / step, step)
        writer.add_scalar("panel/log10_energy_w1_floor", 0.1, step)
        writer.add_scalar("train/c_loss", 1.0, step)
    writer.close()


def _batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    bundles = simulate(sample_primaries(256, preset("bench"), rng), preset("bench"), rng)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(bundles.counts_E)]))
    return Batch(
        (
            Microbatch(
                epoch=0,
                unit=0,
                index=0,
                offsets_E1=offsets,
                host_offsets_E1=offsets.numpy(),
                event_columns={"primary": torch.from_numpy(bundles.primary_E4)},
                particle_columns={"muons": torch.from_numpy(bundles.muons_P3)},
                num_events=len(bundles),
                num_particles=len(bundles.muons_P3),
            ),
        )
    )
