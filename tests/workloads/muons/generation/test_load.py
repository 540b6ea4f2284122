"""What is known of a trained model, whichever it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from trained import make_sampler, write_checkpoint

from common.errors import BadInputError
from services.config.root import Config
from workloads.muons.generation.load import load_trained, most_muons
from workloads.muons.models.likelihood.config import LikelihoodConfig
from workloads.muons.models.wgan.config import NetworkConfig, SamplingConfig, WganConfig

WGAN = WganConfig(network=NetworkConfig(hidden=8, count_hidden=8), sampling=SamplingConfig(max_count=77))


def config_of(**trainer: object) -> Config:
    return Config.model_validate({"input": ["data"], "trainer": trainer})


def test_the_best_checkpoint_of_a_run_comes_before_the_newest(tmp_path: Path) -> None:
    config = config_of(wgan=WGAN.model_dump())
    sampler = make_sampler(WGAN)
    newest = write_checkpoint(tmp_path / "checkpoints/step-000000009.pt", config, sampler)
    write_checkpoint(tmp_path / "checkpoints/step-000000007.pt", config, sampler)
    assert load_trained(tmp_path, torch.device("cpu")).run.path == newest
    best = write_checkpoint(tmp_path / "checkpoints/best.pt", config, sampler)
    trained = load_trained(tmp_path, torch.device("cpu"))
    assert trained.run.path == best
    primary_E4, counts_E = torch.tensor([[1e6, 0.5, 4.0, 1500.0]]), torch.tensor([20])
    muons = [
        one.draw_muons(primary_E4, counts_E, torch.Generator().manual_seed(1)) for one in (trained.generator, sampler)
    ]
    assert torch.equal(*muons)


def test_each_kind_of_model_has_its_cap(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1.pt", config_of(wgan=WGAN.model_dump()), make_sampler(WGAN))
    assert load_trained(path, torch.device("cpu")).max_count == most_muons(WGAN) == 77
    assert most_muons(LikelihoodConfig(max_count=55)) == 55


def test_a_checkpoint_of_another_network_is_told(tmp_path: Path) -> None:
    wider = WGAN.model_copy(update={"network": NetworkConfig(hidden=16, count_hidden=8)})
    path = write_checkpoint(tmp_path / "step-1.pt", config_of(wgan=wider.model_dump()), make_sampler(WGAN))
    with pytest.raises(BadInputError, match=r"step-1\.pt: its model can't be built"):
        load_trained(path, torch.device("cpu"))


@pytest.mark.parametrize("model", ["sets", "flow"])
def test_a_checkpoint_of_a_model_that_is_not_there_names_it_and_the_remedy(tmp_path: Path, model: str) -> None:
    path = write_checkpoint(tmp_path / "step-1.pt", config_of(wgan=WGAN.model_dump()), make_sampler(WGAN))
    state = torch.load(path, weights_only=True)
    config = json.loads(state["config"])
    config["trainer"] |= {"model": model, model: {}}
    torch.save(state | {"config": json.dumps(config)}, path)
    told = rf"step-1\.pt: its model can't be built \('{model}' is no model of .*wgan.*: use the version that wrote it"
    with pytest.raises(BadInputError, match=told):
        load_trained(path, torch.device("cpu"))


@pytest.mark.parametrize(
    ("settings", "without", "told"),
    [
        (
            {"betas": [0.0, 0.9], "gp_max_muons": 64},
            "",
            r"this version has no settings trainer\.wgan\.betas, trainer\.wgan\.gp_max_muons",
        ),
        ({}, "line.weight", r"its networks are not those of this version: .*line\.weight"),
        ({}, "count_head_average", "its networks are not those of this version: .*count_head_average"),
    ],
)
def test_a_checkpoint_of_an_earlier_version_is_told_in_one_line_with_the_remedy(
    tmp_path: Path, settings: dict[str, object], without: str, told: str
) -> None:
    """Of commit 9843d43, whose count head had no line and no running mean."""
    path = write_checkpoint(tmp_path / "step-1.pt", config_of(wgan=WGAN.model_dump()), make_sampler(WGAN))
    state = torch.load(path, weights_only=True)
    config, networks = json.loads(state["config"]), state["task"]["networks"]
    config["trainer"]["wgan"] |= settings
    networks.pop(without, None)
    networks.get("count_head_average", {}).pop(without, None)
    torch.save(state | {"config": json.dumps(config)}, path)
    remedy = "use the version of icestream that wrote it, or train again"
    message = rf"step-1\.pt: its model can't be built \({told}.*\): {remedy}"
    with pytest.raises(BadInputError, match=message) as refused:
        load_trained(path, torch.device("cpu"))
    assert "\n" not in str(refused.value)
    assert "pydantic" not in str(refused.value)


def test_a_run_of_another_workload_is_told(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1.pt", config_of(wgan=WGAN.model_dump()), make_sampler(WGAN))
    state = torch.load(path, weights_only=True)
    config = json.loads(state["config"]) | {"workload": "direction", "trainer": {"model": "sets", "sets": {}}}
    torch.save(state | {"config": json.dumps(config)}, path)
    with pytest.raises(BadInputError) as told:
        load_trained(path, torch.device("cpu"))
    assert str(told.value) == f"{path} is a run of the workload direction: name one of the workload muons"


@pytest.mark.parametrize("changed", [{"position": "[]"}, {"position": None}, {"step": None}])
def test_a_checkpoint_that_lacks_a_part_is_told(tmp_path: Path, changed: dict[str, object]) -> None:
    path = write_checkpoint(tmp_path / "step-1.pt", config_of(wgan=WGAN.model_dump()), make_sampler(WGAN))
    state = torch.load(path, weights_only=True) | changed
    torch.save({name: value for name, value in state.items() if value is not None}, path)
    with pytest.raises(BadInputError, match=r"step-1\.pt: its model can't be built"):
        load_trained(path, torch.device("cpu"))
