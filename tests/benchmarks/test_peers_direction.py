"""Conversion of events for GraphNeT's models, and the table of their results, as in benchmarks/peers/direction."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.peers.direction.__main__ import arguments_of, changes_of
from benchmarks.peers.direction.conversion import LEAST_CHARGE_PE, TRIGGER_NS, KagglePulses, sample
from benchmarks.peers.direction.recipes import RECIPES, changed
from benchmarks.peers.direction.table import rows_in, rows_of_ours, table

POSITION_S3 = torch.tensor([[0.0, 0.0, 0.0], [125.0, 0.0, -17.0]])


def batch() -> SimpleNamespace:
    """Three events of 3, 0 and 1 pulses; of the first one the last pulse is auxiliary."""
    particles = {
        "pulses": torch.tensor([[100.0, 1.0], [160.0, 0.0], [9000.0, 2.0], [-5.0, 4.0]]),
        "sensor": torch.tensor([[0], [1], [0], [1]], dtype=torch.int16),
        "auxiliary": torch.tensor([[False], [False], [True], [False]]),
    }
    events = {"source_direction": torch.eye(3)}
    return SimpleNamespace(events=events, particles=particles, offsets=torch.tensor([0, 3, 3, 4]))


def test_pulses_have_the_columns_of_kaggle_with_each_event_at_the_time_of_the_trigger() -> None:
    pulses = KagglePulses.of(batch(), POSITION_S3)
    assert pulses.values_P6.tolist() == [
        [0.0, 0.0, 0.0, TRIGGER_NS, 1.0, 0.0],
        [125.0, 0.0, -17.0, TRIGGER_NS + 60, pytest.approx(LEAST_CHARGE_PE), 0.0],
        [0.0, 0.0, 0.0, TRIGGER_NS + 8900, 2.0, 1.0],
        [125.0, 0.0, -17.0, TRIGGER_NS, 4.0, 0.0],
    ]


def test_times_are_stretched_about_that_of_the_trigger() -> None:
    stretched = KagglePulses.of(batch(), POSITION_S3, stretch=10.0).values_P6[:, 3]
    assert stretched.tolist() == [TRIGGER_NS, TRIGGER_NS + 600, TRIGGER_NS + 89000, TRIGGER_NS]


def test_events_without_pulses_are_left_out_and_the_others_numbered_anew() -> None:
    pulses = KagglePulses.of(batch(), POSITION_S3)
    assert pulses.event_P.tolist() == [0, 0, 0, 1]
    assert pulses.counts_E.tolist() == [3, 1]
    assert pulses.direction_E3.tolist() == torch.eye(3)[[0, 2]].tolist()


def test_a_large_event_keeps_its_pulses_that_are_not_auxiliary_first() -> None:
    pulses = KagglePulses.of(batch(), POSITION_S3, most=2)
    assert pulses.counts_E.tolist() == [2, 1]
    assert pulses.values_P6[:, 5].tolist() == [0.0, 0.0, 0.0]


def test_a_sample_is_random_within_each_event_and_in_order() -> None:
    torch.manual_seed(1)
    offsets_E1, auxiliary_P = torch.tensor([0, 10, 14]), torch.tensor([True] * 3 + [False] * 11)
    drawn = {tuple(sample(offsets_E1, auxiliary_P, 6).tolist()) for _ in range(20)}
    assert len(drawn) > 3
    for places in drawn:
        assert list(places) == sorted(set(places))
        assert len([place for place in places if place < 10]) == 6
        assert not set(places) & {0, 1, 2}
        assert places[-4:] == (10, 11, 12, 13)


def test_parts_by_size_have_each_event_once_with_its_own_pulses() -> None:
    pulses = KagglePulses.of(batch(), POSITION_S3)
    (small, first), (large, second) = pulses.by_size(2)
    assert (small.tolist(), large.tolist()) == ([1], [0])
    assert torch.equal(first.values_P6, pulses.values_P6[3:])
    assert torch.equal(second.values_P6, pulses.values_P6[:3])
    assert first.direction_E3.tolist() == [[0.0, 0.0, 1.0]]
    assert (first.event_P.tolist(), second.event_P.tolist()) == ([0], [0, 0, 0])


def test_a_setting_that_no_recipe_has_is_refused_in_one_line() -> None:
    assert changed(RECIPES["dynedge"], {"learning_rate": 1e-4}).learning_rate == 1e-4
    assert changes_of(["cascades=false", "batch_events=32"]) == {"cascades": False, "batch_events": 32}
    with pytest.raises(SystemExit, match=r"--set speed=1: no setting speed; there are .*learning_rate"):
        changes_of(["speed=1"])
    assert arguments_of(["train", "--data", "a", "--out", "b"]).seeds == [1, 2, 3]


def test_the_table_has_medians_over_seeds_and_our_models_below(tmp_path: Path) -> None:
    def metrics(mean: float) -> dict[str, float]:
        names = ("angle_mean_deg", "angle_median_deg", "angle_68_deg", "track_angle_mean_deg", "cascade_angle_mean_deg")
        deciles = {"kappa_decile_lowest_ratio": 0.8, "kappa_decile_highest_ratio": 1.0 + mean / 100}
        return dict.fromkeys(names, mean) | deciles | {"kappa_pull_mean": 2.0}

    for seed, mean in ((1, 10.0), (2, 14.0), (3, 12.0)):
        row = {"name": "dynedge", "seed": seed, "metrics": metrics(mean), "trainer_cpu_s": 480.0, "parameters": 1381395}
        (tmp_path / f"dynedge-{seed}.json").write_text(json.dumps(row))
    ours = {"model": "flat", "seed": 1, "trainer_cpu_s": 470.1, "metrics": metrics(9.0)}
    printed = tmp_path / "ours.txt"
    printed.write_text("a table\n" + json.dumps({"results": [ours]}) + "\n")
    *_, peer, flat = table([*rows_in(tmp_path), *rows_of_ours(printed)]).splitlines()
    three = "12.00 (10.00-14.00)"
    assert peer.startswith(f"| dynedge | 1,381,395 | 1, 2, 3 | {three} / {three} / {three} | ")
    assert "| 2.00 | 0.80 to 1.14 | - | 480 | - | - |" in peer
    assert flat.startswith("| `flat` | - | 1 | 9.00 / 9.00 / 9.00 | ")
