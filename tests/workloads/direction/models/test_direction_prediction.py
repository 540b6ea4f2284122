"""Prediction with trained direction models: from a task, from a checkpoint, on the validation block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from direction_events import GEOMETRY, POSITION_S3, direction_batch, direction_microbatch, made_microbatch

from common.errors import BadInputError
from services.config.root import Config
from services.trainer.stream.position import StreamPosition
from workloads.base.batch import Batch, Microbatch
from workloads.base.checkpoint import FORMAT
from workloads.base.context import StepContext
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.fits.classical import classical_fits
from workloads.direction.geometry import Geometry, write_geometry
from workloads.direction.models import sensors
from workloads.direction.models.load import load_predictor
from workloads.direction.models.panel import DirectionPanel
from workloads.direction.models.sets.config import SetsConfig, SetsNetworkConfig
from workloads.direction.models.sets.task import SetsTask

CPU = torch.device("cpu")
SMALL = SetsNetworkConfig(hidden=8, layers=2, trust_hidden=8, trust_layers=1)


@pytest.fixture
def task(tmp_path: Path) -> SetsTask:
    """A small task after three steps."""
    write_geometry(tmp_path / "geometry.csv", GEOMETRY)
    task = SetsTask(
        SetsConfig(network=SMALL, geometry=str(tmp_path / "geometry.csv"), average_decay=0.5), StepContext(CPU, 1)
    )
    for seed in range(3):
        task.step(direction_batch(16, seed))
    return task


def write_checkpoint(path: Path, task: SetsTask, **settings: Any) -> Path:
    """As a run would leave it."""
    section = task.config.model_dump() | settings
    config = Config.model_validate({"input": ["data"], "trainer": {"model": "sets", "sets": section}})
    state = {"config": config.model_dump_json(), "position": StreamPosition().model_dump_json()}
    torch.save({"format": FORMAT, "task": task.state_dict(), "step": 3, **state}, path)
    return path


def test_each_event_alone_has_the_prediction_of_all_together(task: SetsTask) -> None:
    microbatch = direction_microbatch(counts=[6, 0, 1, 30, 12])
    together = task.predictor().predict(microbatch)
    alone = [task.predictor().predict(microbatch.part(event, event + 1)) for event in range(5)]
    torch.testing.assert_close(torch.cat(alone), together, rtol=1e-4, atol=1e-4)
    assert together.isfinite().all()


def test_no_events_have_no_predictions(task: SetsTask) -> None:
    assert task.predictor().predict(direction_microbatch(counts=[6]).part(0, 0)).shape == (0, 3)


def test_the_prediction_does_not_turn_with_augmentation_nor_change_the_task(task: SetsTask) -> None:
    microbatch, before = direction_microbatch(8), torch.get_rng_state()
    first, second = (task.predictor().predict(microbatch) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_classical_fits_that_events_lack_are_computed(task: SetsTask) -> None:
    stored, bare = direction_microbatch(8), direction_microbatch(8)
    columns = bare.particle_columns
    fits_EF = classical_fits(
        columns["sensor"][:, 0].numpy(),
        *columns["pulses"].numpy().T,
        columns["auxiliary"][:, 0].numpy(),
        bare.host_offsets_E1.astype(np.int64),
        GEOMETRY,
    )
    stored.event_columns["classical_fits"][:5] = torch.from_numpy(fits_EF[:5])
    bare.event_columns["classical_fits"][:5] = 0

    predictor = task.predictor()

    torch.testing.assert_close(predictor.predict(bare), predictor.predict(stored))


def test_a_checkpoint_predicts_as_its_task_did_and_needs_no_geometry(task: SetsTask, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1.pt", task)
    (tmp_path / "geometry.csv").unlink()
    microbatch = direction_microbatch(8)

    trained = load_predictor(path, CPU)

    assert torch.equal(trained.predict(microbatch), task.predictor().predict(microbatch))
    assert torch.equal(trained.position_S3, POSITION_S3)
    assert trained.run.model == "sets"
    assert not any(one.requires_grad for one in trained.predictor.network.parameters())


def test_without_an_average_the_latest_weights_predict(task: SetsTask, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1.pt", task, average_decay=0.0)
    with torch.no_grad():
        expected = task.averaged.latest.state_dict()
    found = load_predictor(path, CPU).predictor.network.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    averaged = load_predictor(write_checkpoint(tmp_path / "step-2.pt", task), CPU).predictor.network.state_dict()
    assert any(not torch.equal(value, averaged[name]) for name, value in found.items())


def test_a_checkpoint_of_another_network_is_told(task: SetsTask, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1.pt", task, network=SMALL.model_dump() | {"hidden": 16})
    with pytest.raises(BadInputError, match=r"step-1\.pt: its model can't be built"):
        load_predictor(path, CPU)


def test_the_panel_has_the_errors_of_natural_events(task: SetsTask) -> None:
    enriched = [number % 3 == 0 for number in range(30)]
    whole = direction_microbatch(30, 5, enriched=enriched)
    block = Batch((whole.part(0, 11), whole.part(11, 11), whole.part(11, 30)))
    state = {name: value.clone() for name, value in task.averaged.latest.state_dict().items()}

    panel = DirectionPanel(task)
    evaluation = panel.evaluate(block)

    assert evaluation is not None
    natural = ~np.array(enriched)
    p_E3 = task.predictor().predict(whole).double().numpy()[natural]
    true_E3 = whole.event_columns["source_direction"].double().numpy()[natural]
    kappa = np.linalg.norm(p_E3, axis=1)
    cosine = ((p_E3 / kappa[:, None]) * true_E3).sum(1)
    angles = np.degrees(np.arccos(cosine))
    tracks = np.arange(30)[natural] % 2 == 1
    expected = {
        "panel/angle_mean_deg": angles.mean(),
        "panel/angle_median_deg": np.median(angles),
        "panel/angle_68_deg": np.quantile(angles, 0.68),
        "panel/track_angle_mean_deg": angles[tracks].mean(),
        "panel/cascade_angle_mean_deg": angles[~tracks].mean(),
        "panel/score": angles.mean(),
        "panel/kappa_pull_mean": (2 * kappa * (1 - cosine)).mean(),
    }
    for name, value in expected.items():
        assert evaluation.scalars[name] == pytest.approx(value, rel=1e-3), name
    assert np.isfinite(evaluation.scalars["train/held_out_vmf_loss"])
    assert {name: one.counts.sum() for name, one in evaluation.histograms.items()} == {
        "hist/log10_angle_deg": 20,
        "hist/log10_kappa": 20,
    }
    assert panel.settings() == {"lr_network": task.learning_rates()["network"]}
    assert all(torch.equal(value, state[name]) for name, value in task.averaged.latest.state_dict().items())


def test_without_natural_events_there_is_no_panel(task: SetsTask) -> None:
    panel = DirectionPanel(task)
    assert panel.evaluate(Batch(())) is None
    assert panel.evaluate(Batch((direction_microbatch(3, enriched=[True] * 3),))) is None


def bright_event(num_pulses: int, num_sensors: int) -> Microbatch:
    """One event in which every sensor of a large detector has pulses, half of them auxiliary ones only."""
    random = np.random.default_rng(1)
    sensor_P = np.sort(random.integers(0, num_sensors, num_pulses))
    return made_microbatch(
        np.array([0, num_pulses]),
        sensor=sensor_P,
        pulses=np.stack([np.arange(num_pulses) % 35 * 100.0, np.ones(num_pulses)], 1),
        auxiliary=sensor_P % 2 == 1,
        opens=np.diff(sensor_P, prepend=-1) != 0,
        source_E3=np.array([[0.0, 0.0, 1.0]]),
        fits_EF=random.normal(size=(1, len(CLASSICAL_FITS))),
        enriched=np.array([False]),
    )


def test_an_event_of_178_000_pulses_is_a_step_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Distances between its 5,160 sensors would be 6.7 million pairs at once."""
    position_S3 = np.random.default_rng(2).uniform(-500, 500, (5160, 3)).astype(np.float32)
    write_geometry(tmp_path / "geometry.csv", Geometry(position_S3))
    task = SetsTask(SetsConfig(network=SMALL, geometry=str(tmp_path / "geometry.csv")), StepContext(CPU, 1))
    nearest, pairs = sensors._nearest, []
    monkeypatch.setattr(sensors, "_nearest", lambda *arguments: (pairs.append(arguments[-1]), nearest(*arguments))[1])
    event = bright_event(178_000, 5160)

    metrics = task.step(Batch((event,)))

    assert all(value.isfinite() for value in metrics.values())
    assert metrics["skipped_updates"] == 0
    assert sum(pairs) == 2580 * 2580
    assert max(pairs) <= 1 << 19
