"""Sensors that the networks see, beside a reference of one event at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from direction_events import POSITION_S3, direction_microbatch

from workloads.base.batch import Microbatch
from workloads.direction.models import sensors
from workloads.direction.models.events import EventInput
from workloads.direction.models.sensors import eigenvalues, sensor_set


def reference(microbatch: Microbatch, event: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the chosen sensors of an event, sorted, and its summary, in float64."""
    part = microbatch.part(event, event + 1)
    time, charge = part.particle_columns["pulses"].double().numpy().T
    sensor, clean = part.particle_columns["sensor"][:, 0].numpy(), ~part.particle_columns["auxiliary"][:, 0].numpy()
    time = time - np.sort(time[clean])[(clean.sum() - 1) // 2]
    rows = []
    for one in np.unique(sensor):
        of = sensor == one
        hit = (of & clean).any()
        first = time[of & clean].min() if hit else time[of].min()
        sorted_times = np.sort(time[of])
        after = [sorted_times[(of.sum() - 1) // 2] - first, sorted_times[-1] - first, time[of].mean() - first]
        rows.append([*POSITION_S3[one].numpy(), first, np.log10(charge[of].sum()), not hit, *after, np.log(of.sum())])
    table = np.array(rows, float)
    aux = table[:, 5] > 0
    place = np.c_[table[:, :3] / 150, table[:, 3] / 1000]
    apart = np.linalg.norm(place[:, None] - place[None, ~aux], axis=2).min(1)
    score = np.where(aux, apart, -1 - np.log1p(10 ** table[:, 4]))
    kept = np.argsort(score, kind="stable")[:most]
    kept = kept[score[kept] < 1.5]
    clean_rows = table[~aux]
    spread = np.linalg.eigvalsh(np.cov(clean_rows[:, :3].T, bias=True))
    total = 10 ** table[:, 4]
    summary = [
        *(np.log(len(table)), np.log(len(clean_rows)), np.log(charge.sum()), *(np.log(spread.clip(0) + 1) / 4 - 2)),
        *(clean_rows[:, 3].std() / 500, total.max() / total.sum()),
    ]
    return table[np.sort(kept)], np.array(summary)


@pytest.mark.parametrize("most", [96, 7])
def test_all_events_at_once_are_each_event_alone(most: int) -> None:
    microbatch = direction_microbatch(40, seed=3)
    microbatch.particle_columns["pulses"][:, 0] *= 5  # far apart in time
    found = sensor_set(EventInput.from_microbatch(microbatch, POSITION_S3), most)

    columns = (
        *(found.position_T3, found.time_T1, found.log10_charge_T1, found.auxiliary_T1),
        *(found.median_T1, found.last_T1, found.mean_T1, found.ln_pulses_T1),
    )
    ends = found.segments.counts_E.cumsum(0).tolist()
    tables = np.split(torch.cat(columns, 1).numpy(), ends[:-1])
    cut = 0
    for event, table in enumerate(tables):
        expected, summary = reference(microbatch, event, most)
        np.testing.assert_allclose(table, expected, rtol=1e-4, atol=2e-3)
        np.testing.assert_allclose(found.summary_E8[event].numpy(), summary, rtol=1e-4, atol=1e-3)
        cut += len(expected) < round(np.exp(summary[0]))
    assert cut > 3  # of some events auxiliary sensors are too far, or there are too many


def test_distances_in_blocks_are_those_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    events = EventInput.from_microbatch(direction_microbatch(40, seed=3), POSITION_S3)
    whole = sensor_set(events, 96)
    for most in (1, 50):
        monkeypatch.setattr(sensors, "_PAIRS_AT_ONCE", most)
        assert torch.equal(sensor_set(events, 96).position_T3, whole.position_T3)


def test_without_clean_pulses_all_sensors_count() -> None:
    microbatch = direction_microbatch(5, auxiliary=1.1)
    events = EventInput.from_microbatch(microbatch, POSITION_S3)
    assert events.auxiliary_P.all()
    found = sensor_set(events, 96)
    assert torch.equal(found.segments.counts_E, events.sensors.counts_E)
    assert (found.auxiliary_T1 == 1).all()


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_eigenvalues_are_those_of_lapack(rank: int) -> None:
    vectors_ENR = torch.randn(200, 3, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 300
    matrices = vectors_ENR @ vectors_ENR.mT
    diagonal = torch.diagonal(matrices, dim1=1, dim2=2)
    beside = torch.stack([matrices[:, 0, 1], matrices[:, 1, 2], matrices[:, 2, 0]], 1)
    expected = torch.linalg.eigvalsh(matrices).float() if rank else torch.zeros(200, 3)
    torch.testing.assert_close(eigenvalues(diagonal, beside), expected, rtol=1e-4, atol=1e-2)
