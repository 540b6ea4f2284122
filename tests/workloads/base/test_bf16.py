"""Layers with rounded weights: float32 masters, rounded again after each update and each load."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import nn

from workloads.base.bf16 import Linear, RoundedWeights


def make_network() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(Linear(3, 8), nn.SiLU(), Linear(8, 2, wide=True))


def test_without_rounded_weights_a_layer_is_torchs() -> None:
    torch.manual_seed(5)
    layer = Linear(3, 8)
    torch.manual_seed(5)
    plain = nn.Linear(3, 8)
    rows_RA = torch.randn(4, 3)

    assert torch.equal(layer(rows_RA), plain(rows_RA))
    assert layer.state_dict().keys() == plain.state_dict().keys()


def test_rows_are_bfloat16_and_numbers_for_a_loss_float32() -> None:
    network, rows_RA = make_network(), torch.randn(4, 3)
    expected_RD = network(rows_RA)

    RoundedWeights(network)

    assert network[0](rows_RA).dtype == torch.bfloat16
    assert network(rows_RA).dtype == torch.float32
    torch.testing.assert_close(network(rows_RA), expected_RD, rtol=0.02, atol=0.01)


def test_weights_are_rounded_again_after_an_update_and_after_loading() -> None:
    network, rows_RA = make_network(), torch.randn(4, 3)
    first = copy.deepcopy(network.state_dict())
    rounded = RoundedWeights(network)
    expected_RD = network(rows_RA)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)
    assert torch.equal(network[0](rows_RA), make_rounded(first)[0](rows_RA)), "rounded once an update"

    rounded.refresh()
    assert torch.equal(network(rows_RA), make_rounded(network.state_dict())(rows_RA))
    assert not torch.equal(network(rows_RA), expected_RD)

    network.load_state_dict(first)
    assert torch.equal(network(rows_RA), expected_RD)


def test_a_copy_and_a_part_of_a_network_round_what_they_load() -> None:
    network, rows_RA = make_network(), torch.randn(4, 3)
    RoundedWeights(network)
    first = copy.deepcopy(network.state_dict())
    other = {name: 2 * value for name, value in first.items()}
    copied = copy.deepcopy(network)
    pickled = pickle.loads(pickle.dumps(network))  # noqa: S301  our own

    for one in (copied, pickled):
        one.load_state_dict(other)
        assert torch.equal(one(rows_RA), make_rounded(other)(rows_RA))
    assert torch.equal(network(rows_RA), make_rounded(first)(rows_RA))

    part = network.get_submodule("0")
    part.load_state_dict({name: other[f"0.{name}"] for name in ("weight", "bias")})
    assert torch.equal(part(rows_RA), make_rounded(other)[0](rows_RA))


def test_weights_are_rounded_again_after_a_network_has_moved() -> None:
    network, rows_RA = make_network(), torch.randn(4, 3)
    first = copy.deepcopy(network.state_dict())
    rounded = RoundedWeights(network)

    network.to_empty(device="cpu")  # other memory, as after .to(device)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(first[name])
    rounded.refresh()

    assert torch.equal(network(rows_RA), make_rounded(first)(rows_RA))


def make_rounded(state: dict[str, torch.Tensor]) -> nn.Sequential:
    network = make_network()
    RoundedWeights(network)
    network.load_state_dict(state)
    return network
