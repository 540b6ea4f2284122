"""The fast forward pass against the plain one."""

from __future__ import annotations

import pytest
import torch
from native_layers import layers_in_cpp
from torch import Tensor
from trained import make_sampler

from workloads.base.device import torch_threads
from workloads.base.segments import Segments
from workloads.muons.models.wgan import inference
from workloads.muons.models.wgan.config import NetworkConfig, SamplingConfig, WganConfig
from workloads.muons.models.wgan.sampler import WganSampler

PRIMARY_E4 = torch.tensor([[1e6, 0.3, 56.0, 1500.0], [3e5, 1.0, 1.0, 2500.0], [9e7, 0.1, 4.0, 1100.0]])


def sampler_of(azimuth: str = "symmetric", hidden: int = 24, **sampling: float) -> WganSampler:
    network = NetworkConfig.model_validate({"azimuth": azimuth, "hidden": hidden, "count_hidden": 8})
    sampler = make_sampler(WganConfig(network=network, sampling=SamplingConfig.model_validate(sampling)))
    with torch.no_grad():
        for parameter in sampler.generator.parameters():  # biases, too, must matter
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(parameter))))
    return sampler


def plain(sampler: WganSampler, primary_E4: Tensor, counts_E: Tensor, random: torch.Generator) -> Tensor:
    """One piece, by the modules that were trained."""
    present = counts_E > 0
    segments = Segments.from_counts(counts_E[present], int(counts_E.sum()))
    noise = sampler.generator.noise(segments, random)
    features_PF = sampler.generator(sampler.standardise.conditions(primary_E4[present]), segments, noise)
    most = sampler.config.sampling.max_deviation
    return sampler.standardise.muons(features_PF.clamp(-most, most), random)


@pytest.mark.parametrize("azimuth", ["symmetric", "learned"])
@pytest.mark.parametrize("max_deviation", [10.0, 0.5])
def test_the_fast_pass_gives_the_muons_of_the_plain_one(azimuth: str, max_deviation: float) -> None:
    sampler = sampler_of(azimuth, max_deviation=max_deviation)
    primary_E4 = PRIMARY_E4.repeat(40, 1)
    counts_E = torch.randint(0, 9, (120,), generator=torch.Generator().manual_seed(1))
    assert (counts_E == 0).any()
    fast = sampler.draw_muons(primary_E4, counts_E, torch.Generator().manual_seed(5))
    expected = plain(sampler, primary_E4, counts_E, torch.Generator().manual_seed(5))
    assert fast.shape == expected.shape == (int(counts_E.sum()), 3)
    torch.testing.assert_close(fast, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.process  # a compiler
@pytest.mark.parametrize("azimuth", ["symmetric", "learned"])
@pytest.mark.parametrize("threads", [1, 3])
def test_layers_in_cpp_give_the_muons_of_torchs_on_any_number_of_threads(azimuth: str, threads: int) -> None:
    counts_E = torch.randint(0, 9, (120,), generator=torch.Generator().manual_seed(1))
    counts_E[7] = 500
    arguments = PRIMARY_E4.repeat(40, 1), counts_E
    expected = sampler_of(azimuth, hidden=32).draw_muons(*arguments, torch.Generator().manual_seed(5))
    with layers_in_cpp():
        alone = sampler_of(azimuth, hidden=32).draw_muons(*arguments, torch.Generator().manual_seed(5))
        with torch_threads(threads):
            found = sampler_of(azimuth, hidden=32).draw_muons(*arguments, torch.Generator().manual_seed(5))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(found, alone)


def test_pieces_are_the_plain_pass_of_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one random stream: noise of the piece's events, then noise and azimuth of each run of its particles."""
    monkeypatch.setattr(inference, "CPU_PIECES", inference.PieceSizes(events=2, particles=64, counts=64))
    sampler = sampler_of()
    counts_E = torch.tensor([40, 0, 24, 7])
    primary_E4 = torch.cat([PRIMARY_E4, PRIMARY_E4[:1]])
    fast = sampler.draw_muons(primary_E4, counts_E, torch.Generator().manual_seed(5))
    random = torch.Generator().manual_seed(5)
    expected = [
        plain(sampler, primary_E4[[0, 2]], counts_E[[0, 2]], random),
        plain(sampler, primary_E4[[3]], counts_E[[3]], random),
    ]
    torch.testing.assert_close(fast, torch.cat(expected), rtol=1e-5, atol=1e-5)


def test_an_event_larger_than_a_piece_keeps_its_event_wide_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no noise of their own, all muons of an event are one muon, in whichever piece."""
    monkeypatch.setattr(inference, "CPU_PIECES", inference.PieceSizes(events=8, particles=16, counts=64))
    sampler = sampler_of()
    linear = sampler.generator.muon_input.linear
    with torch.no_grad():
        linear.weight[:, linear.out_features :] = 0
    muons_P3 = sampler.draw_muons(PRIMARY_E4[:2], torch.tensor([100, 30]), torch.Generator().manual_seed(5))
    first, second = muons_P3[:100, 0], muons_P3[100:, 0]
    torch.testing.assert_close(first, first[:1].expand(100))
    torch.testing.assert_close(second, second[:1].expand(30))
    assert not torch.isclose(first[0], second[0])


def test_no_muon_and_no_event_are_no_error() -> None:
    sampler, random = sampler_of(), torch.Generator().manual_seed(5)
    assert sampler.draw_muons(PRIMARY_E4, torch.zeros(3, dtype=torch.int64), random).shape == (0, 3)
    assert sampler.draw_muons(PRIMARY_E4[:0], torch.zeros(0, dtype=torch.int64), random).shape == (0, 3)
    assert sampler.draw_counts(PRIMARY_E4[:0], random).shape == (0,)


def test_what_was_drawn_stays_when_more_is_drawn_and_may_be_written_to() -> None:
    sampler, random = sampler_of(), torch.Generator().manual_seed(5)
    counts_E = torch.tensor([3, 4, 5])
    first = sampler.draw_muons(PRIMARY_E4, counts_E, random)
    before = first.clone()
    second = sampler.draw_muons(PRIMARY_E4, counts_E, random)
    assert torch.equal(first, before)
    assert not torch.equal(first, second)
    first.mul_(2)
