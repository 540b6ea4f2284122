"""Predictions of files: every event in order, exact angles, Kaggle's form, bounded parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from direction_files import direction_arrays, event_rows, write_direction_file
from neutrino_files import import_with, neutrinos, write_kaggle

from common.errors import BadInputError
from icestream.verbs import FrontDoor
from tests.workloads.direction.fake_predictor import TruthTeller, run_of, task_of
from workloads.base.batch import Microbatch
from workloads.direction import prediction
from workloads.direction.geometry import GEOMETRY_FILE, WATER, Geometry, icecube_geometry, write_geometry
from workloads.direction.grouping import group_by_sensor
from workloads.direction.models.task import build_predictor
from workloads.direction.prediction import cut_to, run_predict

CPU = torch.device("cpu")


def run(
    tmp_path: Path, *inputs: Path, out: str = "out.parquet", predictor: TruthTeller | None = None, force: bool = False
) -> list[str]:
    teller = predictor or TruthTeller(run_of(tmp_path / "best.pt"))
    teller.truth = teller.truth or inputs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "load_predictor", lambda place, device: teller)
        return run_predict(
            FrontDoor(),
            checkpoint=tmp_path,
            inputs=tuple(map(str, inputs)),
            out=tmp_path / out,
            device="cpu",
            threads=1,
            force=force,
            toml=None,
            assignments=(),
        )


def two_files(tmp_path: Path, counts: tuple[int, ...] = (5, 9, 30, 7)) -> list[Path]:
    folder = tmp_path / "data"
    folder.mkdir()
    return [
        write_direction_file(folder / f"{name}.parquet", event_rows(counts, first=100 * name), row_group_rows=2)
        for name in (2, 1)
    ]


def test_every_event_is_there_once_in_the_order_of_the_files_with_the_angles_of_its_vector(tmp_path: Path) -> None:
    files = two_files(tmp_path)
    (line,) = run(tmp_path, *files)
    assert "8 events" in line
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["event_id", "azimuth", "zenith", "kappa"]
    assert found["event_id"].to_pylist() == [200, 201, 202, 203, 100, 101, 102, 103]
    for name in ("azimuth", "zenith"):
        true = np.concatenate([pq.read_table(path)[name].to_numpy() for path in files])
        np.testing.assert_allclose(found[name], true, atol=1e-6)
    np.testing.assert_allclose(found["kappa"], 100, rtol=1e-6)
    told = json.loads(pq.read_schema(tmp_path / "out.parquet").metadata[b"icestream.predicted"])
    assert (told["model"], told["step"]) == ("sets", 7)
    first = (tmp_path / "out.parquet").read_bytes()
    run(tmp_path, *files, force=True)
    assert (tmp_path / "out.parquet").read_bytes() == first


def test_a_model_with_the_energy_adds_two_columns_to_parquet_and_none_to_a_submission(tmp_path: Path) -> None:
    path = write_direction_file(tmp_path / "a.parquet", event_rows((4, 0, 6)))
    teller = TruthTeller(run_of(tmp_path / "best.pt"), has_energy=True)
    run(tmp_path, path, predictor=teller)
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["event_id", "azimuth", "zenith", "kappa", "lg_energy", "lg_energy_error"]
    assert found["lg_energy"].to_pylist() == [3.0, None, 3.0]
    assert found["lg_energy_error"].to_pylist() == [pytest.approx(0.5), None, pytest.approx(0.5)]
    assert prediction.TrainedDirections(FrontDoor(), teller, CPU).predict([path]).equals(found)
    run(tmp_path, path, out="submission.csv", predictor=teller)
    assert (tmp_path / "submission.csv").read_text().startswith("event_id,azimuth,zenith\n0,")


def test_a_run_of_another_workload_is_refused_as_one(tmp_path: Path) -> None:
    run_of_muons = replace(run_of(tmp_path / "best.pt"), workload="muons", model="wgan")
    with pytest.raises(BadInputError, match=r"best\.pt is a run of the workload muons: name one of the workload dir"):
        build_predictor(run_of_muons, {}, CPU)


def test_a_submission_is_what_kaggle_reads(tmp_path: Path) -> None:
    files = two_files(tmp_path)
    run(tmp_path, *files, out="submission.csv")
    lines = (tmp_path / "submission.csv").read_bytes().split(b"\n")
    assert lines[0] == b"event_id,azimuth,zenith"
    assert lines[-1] == b""
    true = pa.concat_tables([pq.read_table(path) for path in files]).select(["event_id", "azimuth", "zenith"])
    assert [line.split(b",")[0] for line in lines[1:-1]] == [b"%d" % id for id in true["event_id"].to_pylist()]
    rows = np.array([line.split(b",") for line in lines[1:-1]], float)
    np.testing.assert_allclose(rows, np.stack(true.columns, 1), rtol=0, atol=1e-6)


def test_memory_does_not_grow_with_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_UNIT_EVENTS", 2)
    teller = TruthTeller(run_of(tmp_path / "best.pt"))
    run(tmp_path, *two_files(tmp_path), predictor=teller)
    assert [one.num_events for one in teller.shown] == [2, 2, 2, 2]


def test_pulses_at_once_are_those_of_the_training(tmp_path: Path) -> None:
    config = json.dumps({"stream": {"max_particles": 20}})
    teller = TruthTeller(run_of(tmp_path / "best.pt", config))
    lines = run(tmp_path, *two_files(tmp_path), predictor=teller)
    assert max(one.num_particles for one in teller.shown) <= 20
    assert sum(one.num_events for one in teller.shown) == 8
    assert "2 events with more than 20 pulses, the limit of the training" in lines[1]
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 8


def test_an_event_without_pulses_or_direction_has_zeros_and_is_named(tmp_path: Path) -> None:
    def kappa(events: Microbatch) -> torch.Tensor:
        value = torch.full((events.num_events, 1), 5.0)
        value[events.event_columns["event_id"] == 3] = torch.nan
        return value

    path = write_direction_file(tmp_path / "a.parquet", event_rows((4, 0, 6, 8)))
    lines = run(tmp_path, path, predictor=TruthTeller(run_of(tmp_path / "best.pt"), kappa))
    assert any("2 events without a predicted direction, such as event 1 of" in line for line in lines)
    found = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert found["event_id"] == [0, 1, 2, 3]
    for event in (1, 3):
        assert (found["azimuth"][event], found["zenith"][event], found["kappa"][event]) == (0, 0, 0)
    assert found["kappa"][2] > 0


def test_an_event_larger_than_any_detectors_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "MOST_PULSES", 20)
    files = two_files(tmp_path)
    with pytest.raises(BadInputError, match=r"2\.parquet: 1 events with more than 20 pulses"):
        run(tmp_path, *files)
    assert not (tmp_path / "out.parquet").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"], "no part of a file is left"


def test_an_input_is_not_overwritten_even_by_force(tmp_path: Path) -> None:
    path = write_direction_file(tmp_path / "a.parquet", event_rows((4, 6)))
    before = path.read_bytes()
    with pytest.raises(BadInputError, match="is one of the inputs"):
        run(tmp_path, path, out="a.parquet", force=True)
    assert path.read_bytes() == before


def test_events_of_another_detector_than_the_models_are_refused(tmp_path: Path) -> None:
    """Their sensor numbers mean other places: nothing else would tell that every direction is wrong."""
    files = two_files(tmp_path)
    write_geometry(tmp_path / "data" / GEOMETRY_FILE, icecube_geometry())
    run(tmp_path, *files)
    for other in (Geometry(icecube_geometry().position_S3[::-1].copy()), replace(icecube_geometry(), medium=WATER)):
        write_geometry(tmp_path / "data" / GEOMETRY_FILE, other)
        with pytest.raises(BadInputError, match=r"sensor_geometry\.csv: its 5160 sensors are not those of the 5160"):
            run(tmp_path, *files, force=True)


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("out.txt", r"name a file \*\.parquet, or \*\.csv for Kaggle's submission"),
        ("folder.csv", "is a folder"),
        ("there.csv", "exists: choose another name, or overwrite it with --force"),
        ("none/out.csv", "no such folder"),
    ],
)
def test_an_output_that_can_not_be_written_is_told_before_the_model_is_loaded(
    tmp_path: Path, out: str, reason: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "there.csv").write_text("kept")
    with pytest.raises(BadInputError, match=reason):
        run(tmp_path, tmp_path / "no-files", out=out)
    assert (tmp_path / "there.csv").read_text() == "kept"


def test_a_cut_event_keeps_its_clean_and_earliest_pulses_in_the_order_of_sensors(tmp_path: Path) -> None:
    arrays = direction_arrays(tmp_path, (3, 50, 2))
    arrays.particle_columns["sensor"][:] //= np.int16(1000)  # several pulses each
    group_by_sensor(arrays)
    cut, num_cut = cut_to(arrays, 10)
    assert num_cut == 1
    assert cut.offsets.tolist() == [0, 3, 13, 15]
    own = slice(3, 53)
    time, auxiliary = arrays.particle_columns["pulses"][own, 0], arrays.particle_columns["auxiliary"][own, 0]
    clean = np.sort(time[~auxiliary])[:10]
    assert len(clean) == 10
    assert sorted(cut.particle_columns["pulses"][3:13, 0].tolist()) == clean.tolist()
    sensor = cut.particle_columns["sensor"][3:13, 0]
    assert (np.diff(sensor) >= 0).all()
    expected = np.concatenate([[True], np.diff(sensor) > 0])
    assert cut.particle_columns["opens_sensor"][3:13, 0].tolist() == expected.tolist()
    for name in arrays.particle_columns:
        assert np.array_equal(cut.particle_columns[name][13:], arrays.particle_columns[name][53:]), name


def test_events_without_a_known_direction_are_predicted(tmp_path: Path) -> None:
    write_kaggle(tmp_path, {661: neutrinos([3, 5, 30])}, name="test", angles=False)
    import_with(tmp_path / "test", tmp_path / "events")
    predictor = task_of(tmp_path / "events").predictor()
    trained = TruthTeller(run_of(tmp_path / "best.pt"), detector=predictor.detector)
    trained.predict = predictor.predict  # type: ignore[method-assign]
    run(tmp_path, tmp_path / "events", out="submission.csv", predictor=trained)
    lines = (tmp_path / "submission.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["event_id", "0", "7", "14"]
