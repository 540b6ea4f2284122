"""Packed input of the direction models."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from direction_events import POSITION_S3, direction_microbatch, made_microbatch, turn

from common.errors import BadInputError
from workloads.base.batch import Microbatch
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.models.events import EventInput


def read(microbatch: Microbatch) -> EventInput:
    return EventInput.from_microbatch(microbatch, POSITION_S3)


def test_pulses_belong_to_sensors_and_these_to_events() -> None:
    microbatch = direction_microbatch(counts=[6, 0, 1, 20])
    events = read(microbatch)

    sensor_P = microbatch.particle_columns["sensor"][:, 0].numpy()
    expected = [np.unique(part, return_counts=True) for part in np.split(sensor_P, [6, 6, 7])]
    assert events.sensors.counts_E.tolist() == [len(ids) for ids, _ in expected]
    assert events.pulses.counts_E.tolist() == [int(num) for _, nums in expected for num in nums]
    assert torch.equal(events.position_T3, POSITION_S3[np.concatenate([ids for ids, _ in expected])])
    assert (
        events.pulses.event_P.tolist()
        == np.repeat(np.arange(events.pulses.num_events), events.pulses.counts_E).tolist()
    )
    assert events.pulses.starts_E.tolist() == (events.pulses.counts_E.cumsum(0) - events.pulses.counts_E).tolist()
    assert events.num_events == 4
    assert events.num_without_fits == 0


def test_times_are_relative_to_the_median_of_the_clean_pulses() -> None:
    microbatch = direction_microbatch(counts=[9])
    time_P = microbatch.particle_columns["pulses"][:, 0]
    clean_P = ~microbatch.particle_columns["auxiliary"][:, 0]
    events = read(microbatch)
    torch.testing.assert_close(events.time_P, time_P - time_P[clean_P].median())
    assert torch.equal(events.auxiliary_P, ~clean_P)


def test_a_pulse_without_charge_has_a_finite_logarithm() -> None:
    microbatch = direction_microbatch(counts=[4])
    microbatch.particle_columns["pulses"][:, 1] = torch.tensor([0.0, 1.0, 10.0, 0.1])
    torch.testing.assert_close(read(microbatch).log10_charge_P, torch.tensor([-2.0, 0.0, 1.0, -1.0]))


def test_parts_of_a_microbatch_are_read_as_in_the_whole() -> None:
    microbatch = direction_microbatch(counts=[6, 0, 9, 20])
    whole, parts = read(microbatch), [read(microbatch.part(0, 2)), read(microbatch.part(2, 4))]
    for name in ("time_P", "log10_charge_P", "auxiliary_P", "position_T3", "source_direction_E3", "fits_EF"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts])), name
    assert torch.equal(whole.pulses.counts_E, torch.cat([part.pulses.counts_E for part in parts]))


@pytest.mark.parametrize("counts", [[], [0, 0]])
def test_no_pulses_are_an_input_too(counts: list[int]) -> None:
    nothing = np.zeros(0)
    events = read(
        made_microbatch(
            np.zeros(len(counts) + 1, np.int64),
            sensor=nothing,
            pulses=np.zeros((0, 2)),
            auxiliary=nothing.astype(bool),
            opens=nothing.astype(bool),
            source_E3=np.zeros((len(counts), 3)),
            fits_EF=np.zeros((len(counts), len(CLASSICAL_FITS))),
            enriched=np.zeros(len(counts), bool),
        )
    )
    assert events.num_events == len(counts)
    assert events.pulses.num_events == events.sensors.num_particles == 0
    assert events.num_without_fits == 0


def test_a_sensor_that_the_geometry_lacks_is_named() -> None:
    microbatch = direction_microbatch(counts=[9])
    microbatch.particle_columns["sensor"][-1] = 225
    with pytest.raises(BadInputError, match="a pulse is of sensor 225, and the sensor geometry has 225 sensors"):
        read(microbatch)


def test_events_without_classical_fits_are_counted() -> None:
    microbatch = direction_microbatch(counts=[9, 5, 0])
    microbatch.event_columns["classical_fits"][1:] = 0
    assert read(microbatch).num_without_fits == 1


def test_a_turn_is_that_of_a_microbatch_with_turned_positions() -> None:
    """Everything that has a direction or a place turns: the files of a turned detector are read alike."""
    microbatch, angle = direction_microbatch(counts=[9, 0, 17]), 0.7
    matrix = torch.tensor(
        [[math.cos(angle), math.sin(angle), 0.0], [math.sin(angle), -math.cos(angle), 0.0], [0.0, 0.0, 1.0]]
    )  # y -> -y, then the rotation
    columns = dict(microbatch.event_columns)
    columns["source_direction"] = columns["source_direction"] @ matrix.T
    fits = dict(zip(CLASSICAL_FITS, columns["classical_fits"].unbind(1), strict=True))
    for form in ("line_{}", "line_at_{}_m", "track_{}", "track_at_{}_m", "vertex_{}_m"):
        names = [form.format(axis) for axis in "xyz"]
        turned = torch.stack([fits[name] for name in names], 1) @ matrix.T
        fits |= dict(zip(names, turned.unbind(1), strict=True))
    columns["classical_fits"] = torch.stack([fits[name] for name in CLASSICAL_FITS], 1)
    expected = EventInput.from_microbatch(replace(microbatch, event_columns=columns), POSITION_S3 @ matrix.T)

    found = read(microbatch).turned(turn(angle, -1.0, 3))

    for name in ("position_T3", "source_direction_E3", "fits_EF"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-4, rtol=1e-6)
    assert torch.equal(found.time_P, expected.time_P)


def test_each_event_has_its_own_turn() -> None:
    events = read(direction_microbatch(counts=[9, 17]))
    found = events.turned(torch.tensor([[0.0, 1.0], [math.pi, 1.0]]))
    first = int(events.sensors.counts_E[0])
    torch.testing.assert_close(found.position_T3[:first], events.position_T3[:first])
    half_turn = torch.tensor([-1.0, -1.0, 1.0])
    torch.testing.assert_close(found.position_T3[first:], events.position_T3[first:] * half_turn, atol=1e-3, rtol=0)
    torch.testing.assert_close(found.source_direction_E3[1], events.source_direction_E3[1] * half_turn)
