"""The transformer from pulses to a direction: what its result depends on, and events at the edge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from direction_events import GEOMETRY, POSITION_S3, direction_microbatch
from pydantic import ValidationError
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from workloads.base.batch import Microbatch
from workloads.base.segments import Segments, segment_sum
from workloads.direction.models.events import EventInput
from workloads.direction.models.losses import vmf_loss
from workloads.direction.models.sensors import sensor_set
from workloads.direction.models.transformer.config import TransformerConfig, TransformerNetworkConfig
from workloads.direction.models.transformer.features import token_inputs
from workloads.direction.models.transformer.model import TransformerNetwork

SMALL: dict[str, Any] = {"hidden": 16, "heads": 2, "layers": 2, "refining_layers": 1, "pulse_hidden": 8}


def make_network(*, stirred: bool = True, **settings: Any) -> TransformerNetwork:
    """Small network; ``stirred``: no weight is at its start, so that everything has an effect."""
    torch.manual_seed(3)
    network = TransformerNetwork(TransformerConfig.model_validate({"network": SMALL | settings}))
    if stirred:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    return network


def events_of(microbatch: Microbatch, position_S3: Tensor = POSITION_S3) -> EventInput:
    return EventInput.from_microbatch(microbatch, position_S3)


def loss_of(network: TransformerNetwork, events: EventInput) -> Tensor:
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
        pulses=Segments.from_counts(torch.tensor(counts_T), num_pulses),
        position_T3=position_T3,
        sensors=Segments.from_counts(torch.tensor([len(position_T3)]), len(position_T3)),
        source_direction_E3=torch.tensor([[0.0, 0, 1]]),
        fits_EF=torch.zeros(1, 21),
        enriched_E=torch.zeros(1, dtype=torch.bool),
    )


def test_a_batch_gives_each_event_the_prediction_that_it_has_alone() -> None:
    network = make_network()
    microbatch = direction_microbatch(counts=[12, 0, 1, 60, 3, 0, 25, 8, 200, 2, 7, 9, 30, 5, 1, 14, 22, 40])
    together = network(events_of(microbatch))
    for number in range(microbatch.num_events):
        alone = network(events_of(microbatch.part(number, number + 1)))
        for found, expected in zip((together.p_E3, *together.auxiliary), (alone.p_E3, *alone.auxiliary), strict=True):
            torch.testing.assert_close(found[number], expected[0], rtol=1e-3, atol=1e-4)


def test_the_order_of_sensors_does_not_matter() -> None:
    network, microbatch = make_network(), direction_microbatch(6)
    random = np.random.default_rng(4)
    new_S = random.permutation(len(POSITION_S3))
    sensor_P = new_S[microbatch.particle_columns["sensor"][:, 0].numpy()]
    event_P = np.repeat(np.arange(6), np.diff(microbatch.host_offsets_E1))
    order_P = np.lexsort((microbatch.particle_columns["pulses"][:, 0].numpy(), sensor_P, event_P))
    columns = {name: column[order_P] for name, column in microbatch.particle_columns.items()}
    columns["sensor"] = torch.from_numpy(sensor_P[order_P].astype(np.int16)).unsqueeze(1)
    opens_P = np.append(True, (np.diff(sensor_P[order_P]) != 0) | (np.diff(event_P) != 0))
    columns["opens_sensor"] = torch.from_numpy(opens_P).unsqueeze(1)
    position_S3 = torch.empty_like(POSITION_S3)
    position_S3[new_S] = POSITION_S3

    expected = network(events_of(microbatch)).p_E3
    found = network(events_of(replace(microbatch, particle_columns=columns), position_S3)).p_E3

    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("counts", [[0], [0, 0, 0], [1], [0, 1, 0], [2, 2]])
@pytest.mark.parametrize("auxiliary", [0.0, 1.0])
def test_events_with_few_or_no_pulses_have_finite_predictions_and_gradients(
    counts: list[int], auxiliary: float
) -> None:
    network = make_network()
    events = events_of(direction_microbatch(counts=counts, auxiliary=auxiliary))
    assert network(events).p_E3.shape == (len(counts), 3)
    loss_of(network, events).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(
    "events",
    [
        event(torch.zeros(3, 3), torch.zeros(3), [1, 1, 1]),
        event(torch.zeros(1, 3), torch.zeros(5), [5]),
        event(torch.tensor([[0.0, 0, 0], [0, 0, 17]]), torch.tensor([0.0, 1e9]), [1, 1]),
        event(torch.tensor([[0.0, 0, 0], [0, 0, 17]]), torch.tensor([0.0, 50]), [1, 1], log10_charge=30.0),
        event(torch.tensor([[0.0, 0, 0], [0, 0, 1e6]]), torch.tensor([0.0, 50]), [1, 1], log10_charge=-2.0),
    ],
    ids=["one place and time", "one sensor", "a second late", "absurd charge", "far away"],
)
def test_degenerate_events_have_finite_predictions_and_gradients(events: EventInput) -> None:
    network = make_network()
    loss = loss_of(network, events)
    loss.backward()
    assert loss.isfinite()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_a_first_prediction_of_no_direction_is_refined() -> None:
    """Its length is 0, where a norm has no gradient and a unit vector no value."""
    network, events = make_network(), events_of(direction_microbatch(4))
    torch.nn.init.zeros_(network.first_head.output.weight)
    torch.nn.init.zeros_(network.first_head.output.bias)
    prediction = network(events)
    assert prediction.auxiliary[0].abs().max() == 0
    assert prediction.p_E3.isfinite().all()
    loss_of(network, events).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_features_are_bounded_whatever_was_measured() -> None:
    position_T3, time_P = torch.tensor([[0.0, 0, 0], [0, 0, 1e6]]), torch.tensor([0.0, 1e9])
    events = event(position_T3, time_P, [1, 1], log10_charge=30.0)
    inputs = token_inputs(events, sensor_set(events, 256), 8)
    for features in (inputs.pulses_PF, inputs.sensors_TF, inputs.events_EF):
        assert features.abs().max() <= 30


def test_every_weight_learns() -> None:
    network = make_network()
    loss_of(network, events_of(direction_microbatch(8))).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_the_first_prediction_learns_from_its_own_loss_alone() -> None:
    network, events = make_network(), events_of(direction_microbatch(8))
    vmf_loss(network(events).p_E3, events.source_direction_E3).mean().backward()
    assert network.first_head.output.weight.grad is None
    assert network.layers[0].attention.input.weight.grad is not None


def test_at_the_start_all_directions_are_equally_likely() -> None:
    prediction = make_network(stirred=False)(events_of(direction_microbatch(32)))
    for p_E3 in (prediction.p_E3, *prediction.auxiliary):
        assert torch.linalg.vector_norm(p_E3, dim=1).max() < 0.5


def test_sensors_beyond_the_limit_still_count_in_the_sums() -> None:
    """More light in the dimmest sensor changes the prediction, also where that sensor is no token."""
    events = events_of(direction_microbatch(counts=[60], auxiliary=0.0))
    assert events.sensors.num_particles > 10
    charge_T = segment_sum(10**events.log10_charge_P, events.pulses)
    dimmest = int(events.pulses.starts_E[charge_T.argmin()])
    brighter_P = events.log10_charge_P.clone()
    brighter_P[dimmest] += 0.1
    for max_sensors in (2, 256):
        network = make_network(max_sensors=max_sensors)
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


def test_an_event_of_178_000_pulses_in_5_000_sensors_needs_little_memory() -> None:
    random = torch.Generator().manual_seed(5)
    counts_T = torch.full((5000,), 35)
    counts_T[:3000] += 1
    num_pulses = int(counts_T.sum())
    assert num_pulses == 178_000
    time_P = 5000 * torch.rand(num_pulses, generator=random)
    events = event(500 * torch.randn(5000, 3, generator=random), time_P, counts_T.tolist())
    network = make_network()
    with LargestTensor() as largest:
        loss_of(network, events).backward()
    assert largest.num_bytes < 32 << 20


def test_bfloat16_is_near_float32_and_its_result_is_float32() -> None:
    network, events = make_network(stirred=False), events_of(direction_microbatch(8))
    expected = network(events)
    with torch.autocast("cpu", torch.bfloat16):
        found = network(events)
        assert found.p_E3.dtype == torch.float32
        loss = loss_of(network, events)
    loss.backward()
    torch.testing.assert_close(found.p_E3, expected.p_E3, rtol=0.1, atol=0.01)
    for name, parameter in network.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(
    ("settings", "num_parameters"),
    [
        ({}, 180e3),
        ({"hidden": 128, "heads": 8, "layers": 3, "refining_layers": 3}, 1.6e6),
        ({"hidden": 192, "heads": 12, "layers": 6, "refining_layers": 3}, 5e6),
    ],
)
def test_the_documented_sizes_have_their_number_of_parameters(settings: dict[str, int], num_parameters: float) -> None:
    with torch.device("meta"):
        network = TransformerNetwork(TransformerConfig.model_validate({"network": settings}))
    found = sum(parameter.numel() for parameter in network.parameters())
    assert found == pytest.approx(num_parameters, rel=0.03)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hidden": 50, "heads": 4}, "hidden = 50.*heads = 4.*52"),
        ({"layers": 1, "bias_layers": 2}, "bias_layers = 2.*1"),
    ],
)
def test_sizes_that_do_not_fit_are_named(settings: dict[str, int], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        TransformerNetworkConfig.model_validate(settings)


def test_the_toy_detector_has_fewer_sensors_than_the_limit() -> None:
    """So that the other tests see all of them."""
    assert len(GEOMETRY.position_S3) <= TransformerNetworkConfig().max_sensors
