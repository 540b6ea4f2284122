"""Real simulation events in Kaggle's layout: imported, predicted, evaluated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from neutrino_files import neutrinos, write_kaggle

from icestream.cli import cli
from icestream.front import FrontDoor
from tests.workloads.direction.fake_predictor import TruthTeller, run_of
from workloads.base.context import StepContext
from workloads.direction.evaluation import evaluate as evaluation
from workloads.direction.evaluation.evaluate import DirectionOptions, run_evaluation
from workloads.direction.geometry import GEOMETRY_FILE, read_geometry
from workloads.direction.models.sets.config import SetsConfig
from workloads.direction.models.sets.task import SetsTask
from workloads.direction.prediction.predict import PredictOptions, run_predict

KAGGLE = Path(__file__).resolve().parents[3] / "data" / "prometheus_kaggle"


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    answer = CliRunner().invoke(cli, ["convert", str(KAGGLE), str(tmp_path / "events")])
    assert answer.exit_code == 0, answer.output
    return tmp_path / "events"


@pytest.fixture
def teller(tmp_path: Path, imported: Path) -> TruthTeller:
    position_S3 = torch.from_numpy(read_geometry(imported / GEOMETRY_FILE).position_S3)
    return TruthTeller(run_of(tmp_path / "best.pt"), position_S3=position_S3, truth=tuple(imported.glob("*.parquet")))


def test_the_submission_of_imported_events_has_each_of_them_with_its_angles(
    tmp_path: Path, imported: Path, teller: TruthTeller
) -> None:
    options = PredictOptions(
        checkpoint=tmp_path,
        inputs=(str(imported),),
        out=tmp_path / "submission.csv",
        device="cpu",
        threads=1,
        force=False,
        toml=None,
        assignments=(),
    )
    run_predict(FrontDoor(), options, lambda place, device: teller)
    lines = (tmp_path / "submission.csv").read_text().splitlines()
    found = {int(event): (float(az), float(zen)) for event, az, zen in (line.split(",") for line in lines[1:])}
    meta = pq.read_table(KAGGLE / "train_meta.parquet").to_pydict()
    assert sorted(found) == sorted(meta["event_id"])
    for event, azimuth, zenith in zip(meta["event_id"], meta["azimuth"], meta["zenith"], strict=True):
        turn = (found[event][0] - azimuth + np.pi) % (2 * np.pi) - np.pi
        assert abs(turn) * np.sin(zenith) < 1e-5
        assert found[event][1] == pytest.approx(zenith, abs=1e-5)


def test_imported_events_are_evaluated_without_what_their_files_do_not_know(
    tmp_path: Path, imported: Path, teller: TruthTeller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "pictures", lambda events, seed: [])
    wanted = DirectionOptions(
        checkpoint=tmp_path, inputs=(str(imported),), bootstraps=2, device="cpu", output=tmp_path / "report"
    )
    outcome, _ = run_evaluation(FrontDoor(), wanted, lambda place, device: teller, lambda text: None)
    assert outcome.report.sizes == {"events": 30, "tracks": 0, "cascades": 0}
    metrics = outcome.report.metrics
    assert metrics["angle_mean_deg"].value < 1e-4
    assert 0 < metrics["line_angle_mean_deg"].value < 90
    assert 0 < metrics["pandel_angle_mean_deg"].value < 90


def test_events_without_a_known_direction_are_predicted(tmp_path: Path) -> None:
    write_kaggle(tmp_path, {661: neutrinos([3, 5, 30])}, name="test", angles=False)
    answer = CliRunner().invoke(cli, ["convert", str(tmp_path / "test"), str(tmp_path / "events")])
    assert answer.exit_code == 0, answer.output
    config = SetsConfig(geometry=str(tmp_path / "events" / GEOMETRY_FILE))
    predictor = SetsTask(config, StepContext(torch.device("cpu"), seed=1)).predictor()
    position_S3 = torch.from_numpy(read_geometry(tmp_path / "events" / GEOMETRY_FILE).position_S3)
    trained = TruthTeller(run_of(tmp_path / "best.pt"), position_S3=position_S3)
    trained.predict = predictor.predict  # type: ignore[method-assign]
    options = PredictOptions(
        checkpoint=tmp_path,
        inputs=(str(tmp_path / "events"),),
        out=tmp_path / "submission.csv",
        device="cpu",
        threads=1,
        force=False,
        toml=None,
        assignments=(),
    )
    run_predict(FrontDoor(), options, lambda place, device: trained)
    lines = (tmp_path / "submission.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["event_id", "0", "7", "14"]
