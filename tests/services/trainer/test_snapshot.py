"""Snapshots: what training was at, whatever it does next."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from services.trainer.checkpoints.snapshot import Snapshots, not_finite

CPU = torch.device("cpu")


def trained(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).to(device)
    optimiser = torch.optim.Adam(network.parameters())
    train(network, optimiser, device)
    return network, optimiser, {"network": network.state_dict(), "optimiser": optimiser.state_dict(), "list": [(1,)]}


def train(network: nn.Module, optimiser: torch.optim.Optimizer, device: torch.device) -> None:
    network(torch.ones(2, 3, device=device)).sum().backward()
    optimiser.step()


def flat(content: dict[str, Any]) -> list[float]:
    """Every number of the networks and optimisers."""
    state = content["optimiser"]["state"]
    tensors = [*content["network"].values(), *(tensor for one in state.values() for tensor in one.values())]
    return [number for tensor in tensors for number in tensor.flatten().tolist()]


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_snapshot_stays_what_it_was_while_training_goes_on(name: str) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    device = torch.device(name)
    network, optimiser, content = trained(device)
    before = flat(content)
    snapshot = Snapshots(device).take(content)
    for _ in range(20):
        train(network, optimiser, device)
    snapshot.wait()
    assert flat(snapshot.content) == before != flat(content)
    assert all(tensor.device == CPU for tensor in snapshot.content["network"].values())
    file = io.BytesIO()
    torch.save(snapshot.content, file)
    file.seek(0)
    assert flat(torch.load(file, weights_only=True)) == before


def test_training_can_go_back_to_a_snapshot_again_and_again() -> None:
    network, optimiser, content = trained(CPU)
    before = flat(content)
    snapshot = Snapshots(CPU).take(content)
    for _ in range(2):
        train(network, optimiser, CPU)
        content = snapshot.restorable()
        network.load_state_dict(content["network"])
        optimiser.load_state_dict(content["optimiser"])
        assert flat({"network": network.state_dict(), "optimiser": optimiser.state_dict()}) == before


def test_attributes_that_torch_hangs_on_its_dicts_are_kept() -> None:
    _, _, content = trained(CPU)
    copied = Snapshots(CPU).take(content).content["network"]
    assert isinstance(copied, OrderedDict)
    assert copied._metadata == content["network"]._metadata  # type: ignore[attr-defined]


def test_arrays_that_are_not_finite_are_named_and_single_numbers_are_not() -> None:
    content = {
        "a": {"weights": torch.tensor([1.0, float("inf")])},
        "b": [{"c": torch.tensor([[float("nan")]]), "d": torch.tensor([1])}],
        "measured": torch.tensor(float("nan")),
        "text": "nan",
    }
    assert not_finite(content) == ["a.weights", "b.0.c"]
