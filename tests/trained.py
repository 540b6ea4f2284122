"""Checkpoints for tests of what is done with a trained model: fitted to demo data, but hardly trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from services.config.root import Config
from services.trainer.position import StreamPosition
from workloads.base.checkpoint import FORMAT
from workloads.muons.models.config import LikelihoodConfig, WganConfig
from workloads.muons.models.count_head import MixtureCountHead
from workloads.muons.models.likelihood_densities import Correction, MuonDensities, MuonSampler
from workloads.muons.models.standardise import Standardise
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.muons import sample_primaries, simulate


def make_sampler(
    config: WganConfig | LikelihoodConfig, *, preset_name: str = "bench", count_steps: int = 0
) -> MuonSampler:
    """Standardised with 4,000 events of the preset; the networks are untrained, but for steps of the count head."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        standardise, count_head = Standardise(config.network), MixtureCountHead(config.network)
        muons = MuonDensities(standardise.num_features, config.network)
        correction = None
        if isinstance(config, WganConfig):
            correction = Correction(standardise.num_features, config.network)
            with torch.no_grad():  # biases, too, must matter
                for parameter in correction.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
    _fit(standardise, count_head, preset_name, count_steps)
    sampler = MuonSampler(standardise, count_head, muons, correction)
    for module in modules_of(sampler).values():
        module.requires_grad_(False).eval()
    return sampler


def modules_of(sampler: MuonSampler) -> dict[str, nn.Module]:
    """Modules by their names in a checkpoint, all with the weights for generation."""
    networks = {"count_head": sampler.count_head, "muons": sampler.muons, "correction": sampler.correction}
    there = {name: network for name, network in networks.items() if network is not None}
    averages = {f"{name}_average": network for name, network in there.items()}
    return {"standardise": sampler.standardise, **there, **averages}


def _fit(standardise: Standardise, count_head: MixtureCountHead, preset_name: str, count_steps: int) -> None:
    rng = np.random.default_rng(1)
    simulator = preset(preset_name)
    bundles = simulate(sample_primaries(4000, simulator, rng), simulator, rng)
    primary_E4 = torch.from_numpy(bundles.primary_E4)
    counts_E = torch.from_numpy(bundles.counts_E.astype(np.int64))
    standardise.fit_conditions(primary_E4)
    standardise.fit_features(torch.from_numpy(bundles.muons_P3.copy()))
    if count_steps:
        conditions_EC = standardise.conditions(primary_E4)
        count_head.requires_grad_(True)
        optimiser = torch.optim.Adam(count_head.parameters(), lr=1e-2)
        for step in range(count_steps):
            rows = torch.arange(512) + 512 * (step % 7)
            loss = count_head.loss(conditions_EC[rows], counts_E[rows]) / len(rows)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        count_head.requires_grad_(False)


def write_run(folder: Path, **settings: object) -> Path:
    """Run directory of a small WGAN."""
    config = Config.model_validate({"input": ["data"], "trainer": {"wgan": {"network": {"hidden": 16}}}, **settings})
    sampler = make_sampler(config.trainer.wgan, count_steps=100)
    write_checkpoint(folder / "checkpoints" / "step-000000007.pt", config, sampler)
    return folder


def write_checkpoint(path: Path, config: Config, sampler: MuonSampler) -> Path:
    """As a run of this configuration would leave it."""
    networks = {name: module.state_dict() for name, module in modules_of(sampler).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(
        {
            "format": FORMAT,
            "config": config.model_dump_json(),
            "task": {"networks": networks},
            "position": StreamPosition().model_dump_json(),
            "step": 7,
        },
        path,
    )
    return path
