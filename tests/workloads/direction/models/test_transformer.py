"""Transformer and flat transformer: padding, attention against its definition, sizes; every network: events alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from direction_events import POSITION_S3, direction_microbatch, event_input, segments_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from workloads.base.segments import segment_sum
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.geometry import ICE, LIGHT_SPEED_M_NS, Geometry
from workloads.direction.models import flat, transformer
from workloads.direction.models.config import TransformerConfig
from workloads.direction.models.flat import FlatLayer, FlatNetwork, flat_features
from workloads.direction.models.network import Detector, DirectionNetwork, EventInput, sensor_set, vmf_loss
from workloads.direction.models.sets import SetsNetwork
from workloads.direction.models.task import NETWORKS
from workloads.direction.models.transformer import Attention, Padding, TransformerNetwork, _groups, interval_terms

MIXED = [3, 0, 1, 40, 2, 0, 5, 7, 38, 4, 1, 6, 2, 2, 9, 3, 5, 36]


@pytest.mark.parametrize("counts", [MIXED, [1], [4, 0], [0, 0, 5]])
def test_rows_come_back_in_their_order(counts: list[int]) -> None:
    rows = torch.randn(sum(counts), 3)
    padding = Padding.of(segments_of(*counts))
    assert torch.equal(padding.packed(padding.padded(rows)), rows)


def test_a_long_event_does_not_pad_all_others() -> None:
    counts = [10] * 60 + [1000] * 4
    rows = sum(group.numel() for group in Padding.of(segments_of(*counts)).groups)
    assert rows < 0.3 * len(counts) * max(counts)


def test_a_gpu_has_one_group_unless_a_long_event_would_pad_too_many() -> None:
    """4,000 events as long as one of 256 sensors would have 8 GB of terms of the attention's bias."""
    few, many = (torch.tensor([0, 256, *[20] * num]) for num in (100, 4000))
    assert [len(group) for group in _groups(few, one=True)] == [101]
    found = list(_groups(many, one=True))
    assert sum(len(group) for group in found) == 4001
    assert sum(len(group) * int(many[group].max()) ** 2 for group in found) < 2 * int(many.square().sum())


def test_each_event_is_attended_to_by_itself_with_its_bias_and_so_are_its_gradients() -> None:
    torch.manual_seed(1)
    counts = [3, 0, 7, 1, 5]
    segments = segments_of(*counts)
    padding = Padding.of(segments)
    rows = torch.randn(16, 8, requires_grad=True)
    position, time = 200 * torch.randn(16, 3), 500 * torch.randn(16, 1)
    attention = Attention(8, 2, biased=True)
    assert attention.bias is not None
    torch.nn.init.normal_(attention.bias.weight)

    found = attention(rows, padding, interval_terms(position, time, padding))

    expected = []
    for start, count in zip(segments.starts_E.tolist(), counts, strict=True):
        if count == 0:
            continue
        of_event = slice(start, start + count)
        alone = Padding.of(segments_of(count))
        bias = attention.bias(interval_terms(position[of_event], time[of_event], alone)[0][0])
        query, key, value = attention.input(rows[of_event]).unflatten(1, (3, 2, 4)).unbind(1)
        heads = []
        for head in range(2):
            scores = attention.query_norm(query[:, head]) @ attention.key_norm(key[:, head]).T / 2 + bias[..., head]
            heads.append(F.softmax(scores, 1) @ value[:, head])
        expected.append(attention.output(torch.cat(heads, 1)))
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-5)
    weights = torch.randn(16, 8)
    slopes, expected_slopes = (
        torch.autograd.grad((result * weights).sum(), [rows, *attention.parameters()])
        for result in (found, torch.cat(expected))
    )
    torch.testing.assert_close(slopes, expected_slopes, rtol=1e-3, atol=1e-4)


def test_terms_depend_on_the_sign_and_size_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sensors at the same place, 300 m of light apart in time: s = 300 m. At the same time, 300 m apart: -300 m."""
    monkeypatch.setattr(transformer, "_BIAS_TERMS", 5)
    padding = Padding.of(segments_of(2, 2))
    position = torch.tensor([[0.0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 300, 0]])
    time = torch.tensor([[0.0], [300 / LIGHT_SPEED_M_NS], [0], [0]])

    (terms,) = interval_terms(position, time, padding)

    centres = torch.tensor([-2.0, -1, 0, 1, 2])
    for event, interval in ((0, 1.0), (1, -1.0)):
        expected = (-((interval - centres) * 5 / 4).square()).exp()
        torch.testing.assert_close(terms[event, 0, 1], expected)
        torch.testing.assert_close(terms[event, 1, 0], expected)
        torch.testing.assert_close(terms[event, 0, 0, 2], torch.tensor(1.0))


MAKE: dict[str, Callable[[], DirectionNetwork]] = {
    "transformer": lambda: TransformerNetwork(16, 2, 2, 1),
    "flat": lambda: FlatNetwork(16, 2, 2),
    "sets": lambda: SetsNetwork(8, 2),
}
every_model = pytest.mark.parametrize("model", list(MAKE))
both_models = pytest.mark.parametrize("model", ["transformer", "flat"])


def make_network(model: str = "transformer", *, stirred: bool = True) -> Any:
    """Small network; ``stirred``: no weight is at its start, so that everything has an effect."""
    torch.manual_seed(3)
    network = MAKE[model]()
    if stirred:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    return network


def loss_of(network: DirectionNetwork, events: EventInput) -> Tensor:
    prediction = network(events)
    return sum(
        (vmf_loss(p_E3, events.source_direction_E3).mean() for p_E3 in (prediction.p_E3, *prediction.auxiliary)),
        start=torch.zeros(()),
    )


def event(position_T3: Tensor, time_P: Tensor, counts_T: list[int], *, log10_charge: float = 0.0) -> EventInput:
    """One event with these sensors, each with its number of pulses."""
    num_pulses = len(time_P)
    return EventInput(
        time_P=time_P,
        log10_charge_P=torch.full((num_pulses,), log10_charge),
        auxiliary_P=torch.zeros(num_pulses, dtype=torch.bool),
        pulses=segments_of(*counts_T),
        position_T3=position_T3,
        sensors=segments_of(len(position_T3)),
        source_direction_E3=torch.tensor([[0.0, 0, 1]]),
        fits_EF=torch.zeros(1, len(CLASSICAL_FITS)),
        enriched_E=torch.zeros(1, dtype=torch.bool),
        medium=ICE,
    )


@every_model
def test_a_batch_gives_each_event_the_prediction_that_it_has_alone(model: str) -> None:
    network = make_network(model)
    microbatch = direction_microbatch(counts=[12, 0, 1, 60, 3, 25, 200, 2, 9])
    together = network(event_input(microbatch))
    for number in range(microbatch.num_events):
        alone = network(event_input(microbatch.part(number, number + 1)))
        for found, expected in zip((together.p_E3, *together.auxiliary), (alone.p_E3, *alone.auxiliary), strict=True):
            torch.testing.assert_close(found[number], expected[0], rtol=1e-3, atol=1e-4)


@every_model
def test_the_order_of_sensors_does_not_matter(model: str) -> None:
    network, microbatch = make_network(model), direction_microbatch(6)
    random = np.random.default_rng(4)
    new_S = random.permutation(len(POSITION_S3))
    sensor_P = new_S[microbatch.particle_columns["sensor"][:, 0].numpy()]
    event_P = np.repeat(np.arange(6), np.diff(microbatch.host_offsets_E1))
    order_P = np.lexsort((microbatch.particle_columns["pulses"][:, 0].numpy(), sensor_P, event_P))
    columns = {name: column[order_P] for name, column in microbatch.particle_columns.items()}
    columns["sensor"] = torch.from_numpy(sensor_P[order_P].astype(np.int16)).unsqueeze(1)
    opens_P = np.append(True, (np.diff(sensor_P[order_P]) != 0) | (np.diff(event_P) != 0))
    columns["opens_sensor"] = torch.from_numpy(opens_P).unsqueeze(1)
    position_S3 = np.empty_like(POSITION_S3)
    position_S3[new_S] = POSITION_S3

    expected = network(event_input(microbatch)).p_E3
    found = network(event_input(replace(microbatch, particle_columns=columns), Detector(Geometry(position_S3)))).p_E3

    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "events",
    [
        event_input(direction_microbatch(counts=[0, 0, 0])),
        event_input(direction_microbatch(counts=[0, 1, 0], auxiliary=0.0)),
        event_input(direction_microbatch(counts=[2, 2], auxiliary=1.0)),
        event(torch.zeros(3, 3), torch.zeros(3), [1, 1, 1]),
        event(torch.zeros(1, 3), torch.zeros(5), [5]),
        event_input(direction_microbatch(counts=[2, 9], auxiliary=0.0, first=1e34)),
        event(torch.tensor([[0.0, 0, 0], [0, 0, 17]]), torch.tensor([0.0, 50]), [1, 1], log10_charge=30.0),
        event(torch.tensor([[0.0, 0, 0], [0, 0, 1e6]]), torch.tensor([0.0, 50]), [1, 1], log10_charge=-2.0),
    ],
    ids=["none", "one", "auxiliary", "one place and time", "one sensor", "absurd time", "absurd charge", "far away"],
)
@every_model
def test_events_that_tell_little_have_finite_predictions_and_gradients(model: str, events: EventInput) -> None:
    network = make_network(model)
    loss = loss_of(network, events)
    loss.backward()
    assert network(events).p_E3.shape == (events.num_events, 3)
    assert loss.isfinite()
    for name, parameter in network.named_parameters():
        assert parameter.grad is None or parameter.grad.norm().isfinite(), name


@every_model
def test_every_weight_learns(model: str) -> None:
    network = make_network(model)
    loss_of(network, event_input(direction_microbatch(8))).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_the_first_prediction_learns_from_its_own_loss_alone() -> None:
    network, events = make_network(), event_input(direction_microbatch(8))
    vmf_loss(network(events).p_E3, events.source_direction_E3).mean().backward()
    assert network.first_head[3].weight.grad is None
    assert network.layers[0].attention.input.weight.grad is not None


@pytest.mark.parametrize("max_sensors", [2, 256])
def test_sensors_beyond_the_limit_still_count_in_the_sums(monkeypatch: pytest.MonkeyPatch, max_sensors: int) -> None:
    """More light in the dimmest sensor changes the prediction, also where that sensor is no token."""
    events = event_input(direction_microbatch(counts=[60], auxiliary=0.0))
    assert events.sensors.num_particles > 10
    charge_T = segment_sum(10**events.log10_charge_P, events.pulses)
    dimmest = int(events.pulses.starts_E[charge_T.argmin()])
    brighter_P = events.log10_charge_P.clone()
    brighter_P[dimmest] += 0.1
    monkeypatch.setattr(transformer, "MAX_SENSORS", max_sensors)
    network = make_network()
    before, after = (network(of).p_E3 for of in (events, replace(events, log10_charge_P=brighter_P)))
    assert not torch.allclose(before, after, rtol=1e-6)


class LargestTensor(TorchDispatchMode):
    """Size in bytes of the largest result of any operation."""

    num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.num_bytes = max(self.num_bytes, tensor.untyped_storage().nbytes())
        return result


def test_an_event_of_5_000_sensors_needs_little_memory() -> None:
    """Attention between all of them would need 100 MB."""
    random = torch.Generator().manual_seed(5)
    time_P = 5000 * torch.rand(20_000, generator=random)
    events = event(500 * torch.randn(5000, 3, generator=random), time_P, [4] * 5000)
    network = make_network()
    with LargestTensor() as largest:
        loss_of(network, events).backward()
    assert largest.num_bytes < 32 << 20


@both_models
def test_bfloat16_is_near_float32_and_its_result_is_float32(model: str) -> None:
    network, events = make_network(model, stirred=False), event_input(direction_microbatch(8))
    expected = network(events)
    with torch.autocast("cpu", torch.bfloat16):
        found = network(events)
        assert found.p_E3.dtype == torch.float32
        loss = loss_of(network, events)
    loss.backward()
    torch.testing.assert_close(found.p_E3, expected.p_E3, rtol=0.1, atol=0.01)
    for name, parameter in network.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("size", get_args(TransformerConfig.model_fields["size"].annotation))
@both_models
def test_a_size_has_its_number_of_parameters(model: str, size: str) -> None:
    with torch.device("meta"):
        network = NETWORKS[model](TransformerConfig.model_validate({"size": size}))
    found = sum(parameter.numel() for parameter in network.parameters())
    assert found == pytest.approx(float(size.removesuffix("m")) * 1e6, rel=0.05)


def test_the_flat_token_has_the_first_pulses_in_time_and_zeros_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "PULSES", 2)
    events = event(torch.tensor([[0.0, 50, 500], [0, 0, 17]]), torch.tensor([7.0, 8, 9, 5]), [3, 1], log10_charge=0.5)
    features_TF = flat_features(events, sensor_set(events, 2))
    flag = -0.5
    expected = [[0, 0.1, 1, math.log(3) / 2, 0.007, 0.5, flag, 0.008, 0.5, flag]]
    expected += [[0, 0, 0.034, 0, 0.005, 0.5, flag, 0, 0, 0]]
    torch.testing.assert_close(features_TF, torch.tensor(expected))


def test_a_new_flat_network_hands_the_first_tokens_through() -> None:
    """Output weights of 0: attention and inner networks add nothing at the start."""
    layer = FlatLayer(16, 2)
    first_RD, padding = torch.randn(5, 16), Padding.of(segments_of(2, 3))
    torch.testing.assert_close(layer(first_RD, first_RD, padding), 1.1 * first_RD)
