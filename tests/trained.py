"""Checkpoints for tests of what is done with a trained model: fitted to demo data, but hardly trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from services.config.root import Config
from services.trainer.stream.position import StreamPosition
from workloads.base.checkpoint import FORMAT
from workloads.muons.models.wgan.config import WganConfig
from workloads.muons.models.wgan.sampler import WganSampler
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.flux import sample_primaries
from workloads.muons.simulator.muons import simulate


def make_sampler(config: WganConfig, *, preset_name: str = "bench", count_steps: int = 0) -> WganSampler:
    """Standardised with 4,000 events of the preset; the networks are untrained, but for steps of the count head."""
    rng = np.random.default_rng(1)
    simulator = preset(preset_name)
    bundles = simulate(sample_primaries(4000, simulator, rng), simulator, rng)
    primary_E4 = torch.from_numpy(bundles.primary_E4)
    counts_E = torch.from_numpy(bundles.counts_E.astype(np.int64))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sampler = WganSampler(config, torch.device("cpu"))
    sampler.standardise.fit_conditions(primary_E4)
    sampler.standardise.fit_features(torch.from_numpy(bundles.muons_P3.copy()))
    if count_steps:
        conditions_EC = sampler.standardise.conditions(primary_E4)
        head = sampler.count_head.requires_grad_(True)
        optimiser = torch.optim.Adam(head.parameters(), lr=1e-2)
        for step in range(count_steps):
            rows = torch.arange(512) + 512 * (step % 7)
            loss = head.loss(conditions_EC[rows], counts_E[rows]) / len(rows)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        head.requires_grad_(False)
    return sampler


def write_checkpoint(path: Path, config: Config, sampler: WganSampler) -> Path:
    """As a run of this configuration would leave it."""
    networks = {
        "standardise": sampler.standardise.state_dict(),
        "count_head": sampler.count_head.state_dict(),
        "count_head_average": sampler.count_head.state_dict(),
        "generator": sampler.generator.state_dict(),
        "generator_average": sampler.generator.state_dict(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(
        {
            "format": FORMAT,
            "config": config.model_dump_json(),
            "task": {"networks": networks},
            "position": StreamPosition.start(1).model_dump_json(),
            "step": 7,
        },
        path,
    )
    return path
