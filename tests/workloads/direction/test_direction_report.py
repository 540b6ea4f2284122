"""Reports of predicted directions: files, exit code, what is left out where it is not known."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from direction_files import direction_arrays, event_rows, write_direction_file
from matplotlib.figure import Figure
from matplotlib.text import Text

from common.errors import BadInputError
from icestream import verbs
from icestream.verbs import FrontDoor
from tests.workloads.direction.fake_predictor import NearTruth, calibrated_events, run_of, task_of, write_checkpoint
from workloads.base.report import evaluation as drawing
from workloads.base.report.page import Outcome
from workloads.direction import evaluation as module
from workloads.direction import plots
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.commands import evaluate as evaluate_command
from workloads.direction.evaluation import (
    EVALUATION,
    HEADLINE,
    DirectionOptions,
    ToyFloor,
    clean_sensors,
    only,
    predicted_events,
)
from workloads.direction.geometry import GEOMETRY_FILE, Geometry, icecube_geometry, write_geometry
from workloads.direction.models.network import Detector
from workloads.direction.prediction import Predicted

COUNTS = np.random.default_rng(1).integers(8, 30, 400).tolist()


@pytest.fixture(autouse=True)
def small_pictures(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Small pictures in the slow tests, none in the others."""
    monkeypatch.setattr(drawing, "DPI", 30)
    monkeypatch.setattr(plots, "BOOTSTRAPS", 3)
    if "slow" not in request.keywords:
        monkeypatch.setattr(module, "pictures", lambda predicted, seed: [])


TRACK_FIT = slice(CLASSICAL_FITS.index("track_x"), CLASSICAL_FITS.index("track_x") + 3)


def written(folder: Path, counts: list[int] = COUNTS, row_group_rows: int = 1000, **columns: Any) -> Path:
    """A file of events with fits anywhere, since to compute them takes seconds; without a track in the first ten."""
    fits_EF = np.random.default_rng(3).normal(size=(len(counts), len(CLASSICAL_FITS)))
    fits_EF[:10, TRACK_FIT] = 0
    rows = event_rows(counts, classical_fits=fits_EF, **columns)
    return write_direction_file(folder / "a.parquet", rows, row_group_rows=row_group_rows)


def evaluated(tmp_path: Path, *inputs: Path, energy: bool = False, **options: Any) -> tuple[Outcome, Path]:
    run = run_of(tmp_path / "run" / "checkpoints" / "best.pt")
    wanted = DirectionOptions(
        checkpoint=tmp_path / "run", inputs=tuple(map(str, inputs)), bootstraps=3, device="cpu", **options
    )
    of_model = replace(EVALUATION, load=lambda place, device: NearTruth(run, has_energy=energy))
    return of_model.run(FrontDoor(), wanted, lambda text: None)


@pytest.mark.slow
def test_a_report_has_its_numbers_pictures_and_provenance(tmp_path: Path) -> None:
    path = written(tmp_path)
    outcome, folder = evaluated(tmp_path, path)
    assert folder == tmp_path / "run" / "evaluation"
    report = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    assert set(HEADLINE) <= set(report["metrics"])
    assert report["metrics"]["angle_mean_deg"]["value"] == pytest.approx(1.25, rel=0.15)
    assert report["metrics"]["line_angle_mean_deg"]["value"] == pytest.approx(90, rel=0.1)
    assert (report["events"], report["model"], report["step"]) == (400, "sets", 7)
    assert report["tracks"] + report["cascades"] == 400
    assert report["simulated"] is False
    assert any("10 events have no direction from the method 'pandel'" in note for note in report["notes"])
    assert len(report["pictures"]) == 9
    for name in report["pictures"]:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    text = (folder / "report.html").read_text()
    assert all(f"<code>{name}</code>" in text for name in report["metrics"])
    assert outcome.missed == {}


def test_energies_are_compared_if_the_model_predicts_and_the_files_know_them(tmp_path: Path) -> None:
    energies = {True: 10 ** np.random.default_rng(1).normal(3.2, 0.5, len(COUNTS)), False: np.zeros(len(COUNTS))}
    for predicted, known in ((True, True), (True, False), (False, True)):
        path = written(tmp_path, true_energy=energies[known])
        metrics = evaluated(tmp_path, path, energy=predicted)[0].report.metrics
        assert bool([name for name in metrics if "energy" in name]) == (predicted and known)
        if predicted and known:
            assert metrics["lg_energy_bias"].value == pytest.approx(-0.2, abs=0.1)
            assert metrics["lg_energy_pull_std"].value == pytest.approx(1, abs=0.15)


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, row_group_rows=50)
    first, _ = evaluated(tmp_path, path, events=150)
    again, _ = evaluated(tmp_path, path, events=150, output=tmp_path / "again")
    assert str(first.report) == str(again.report)
    assert first.report.sizes["events"] == 150


@pytest.mark.slow
def test_real_data_leave_out_what_is_not_known_and_say_so(tmp_path: Path) -> None:
    path = written(tmp_path, topology=np.full(len(COUNTS), -1), true_energy=np.zeros(len(COUNTS)))
    outcome, _ = evaluated(tmp_path, path)
    names = {picture.name for picture in outcome.pictures}
    assert names == {"angles", "by-sensors", "by-zenith", "sky", "zenith", "calibration", "pulls"}
    assert not [name for name in outcome.report.metrics if "track" in name or "cascade" in name]
    for part in ("energies are not known", "tracks and cascades are not both known"):
        assert any(part in note for note in outcome.report.notes), part


def test_events_that_enrich_a_training_are_left_out(tmp_path: Path) -> None:
    enriched = np.arange(len(COUNTS)) % 4 == 0
    outcome, _ = evaluated(tmp_path, written(tmp_path, enriched=enriched))
    assert outcome.report.sizes["events"] == 300
    assert any("100 events were added to enrich a training" in note for note in outcome.report.notes)
    with pytest.raises(BadInputError, match="all 400 events were added"):
        evaluated(tmp_path, written(tmp_path, enriched=np.ones(len(COUNTS))))


def test_an_event_larger_than_the_limit_of_the_training_is_cut_not_lost(tmp_path: Path) -> None:
    path = written(tmp_path, [*COUNTS, 500])
    outcome, _ = evaluated(tmp_path, path, assignments=("stream.max_particles=100",))
    assert outcome.report.sizes["events"] == 401
    assert any("1 events with more than 100 pulses" in note for note in outcome.report.notes)


def test_simulated_events_have_the_measured_floors(tmp_path: Path) -> None:
    path = written(tmp_path)
    outcome, folder = evaluated(tmp_path, path, simulated=True)
    stored = json.loads((Path(module.__file__).parent / "toy_floor.json").read_text())
    for name in ("angle_mean_deg", "track_angle_median_deg", "cascade_angle_68_deg"):
        assert outcome.report.metrics[name].floor == stored["figures"][name]["value"]
        assert outcome.report.metrics[name].floor_error == stored["figures"][name]["error"]
    assert any(stored["date"] in note and "bench_direction_floor" in note for note in outcome.report.notes)
    assert "own likelihood" in (folder / "report.html").read_text()


def test_missed_thresholds_are_printed_and_exit_with_code_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, path = run_of(tmp_path / "run" / "checkpoints" / "best.pt"), written(tmp_path)
    monkeypatch.setattr(module, "EVALUATION", replace(EVALUATION, load=lambda place, device: NearTruth(run)))
    limits = tmp_path / "limits.toml"
    limits.write_text("angle_mean_deg = 0.5\nkappa_pull_mean = { min = 0.0, max = 10.0 }\n")
    arguments = ["run", "-i", str(path), "--bootstraps", "3", "--device", "cpu", "--thresholds", str(limits)]
    answer = CliRunner().invoke(evaluate_command, arguments, obj=FrontDoor())
    assert answer.exit_code == 3, answer.output
    assert re.search(r"^missed: angle_mean_deg: [\d.]+, limit 0.5$", answer.output, re.M)
    assert "missed: kappa" not in answer.output
    limits.write_text("angle_mean_deg = 5\n")
    answer = CliRunner().invoke(evaluate_command, arguments, obj=FrontDoor())
    assert answer.exit_code == 0, answer.output
    assert answer.output.splitlines()[-1] == f"report: {tmp_path / 'run' / 'evaluation' / 'report.html'}"


def test_a_model_of_another_kind_is_evaluated_beside_on_the_same_events(tmp_path: Path) -> None:
    write_geometry(tmp_path / GEOMETRY_FILE, icecube_geometry())
    for model in ("flat", "transformer"):
        write_checkpoint(tmp_path / f"{model}.pt", task_of(tmp_path, model=model))
    flat, other, path = tmp_path / "flat.pt", tmp_path / "transformer.pt", written(tmp_path, COUNTS[:120])
    alone = verbs.evaluate(other, path, bootstraps=3, device="cpu")
    both = verbs.evaluate(flat, path, bootstraps=3, device="cpu", beside=other, output=tmp_path)
    assert dict(both.outcome.beside.metrics) == dict(alone) != dict(both)
    assert json.loads((tmp_path / "report.json").read_text())["beside"]["provenance"]["model"] == "transformer"
    head, *rows = str(both).splitlines()[1:]
    assert re.match(
        r"(flat|transformer|neither .*) is better \([\d.]+ ± [\d.]+° in mean angles, [\d.]+ σ\)(, |: \w+ is )nearer",
        head,
    )
    assert re.match(r"metric +floor ± error +flat ± error .* transformer ± error ", rows[1])
    floors = next(row for row in rows if row.startswith("kappa_pull_mean "))
    for floor, report in zip(re.findall(r"([\d.]+) ± ", floors), (both, alone), strict=False):
        assert float(floor) == pytest.approx(report["kappa_pull_mean"].floor, abs=0.001), "of each model's own κ"


def test_both_models_are_in_every_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    canvas = SimpleNamespace(print_png=lambda png: None)  # drawn by slow tests
    monkeypatch.setattr(drawing, "FigureCanvasAgg", lambda figure: figures.append(figure) or canvas)
    first = calibrated_events(400)
    second = replace(first, direction_E3=first.direction_E3[::-1].copy(), kappa_E=first.kappa_E / 2)
    second.direction_E3[:5] = np.nan
    drawn = plots.pictures({"a": first, "b": second}, seed=0)
    assert len({one.name for one in drawn}) == len(drawn) == len(figures) == 11
    for one, figure in zip(drawn, figures, strict=True):
        words = {text.get_text().partition(",")[0].partition(":")[0] for text in figure.findobj(Text)}
        assert {"a", "b"} <= words, one.name
    unknown = replace(second, lg_energy_E2=np.full((400, 2), np.nan))
    assert [len(plots.pictures(of, seed=0)) for of in ({"a": first, "b": unknown}, {"b": unknown})] == [11, 9]


def test_what_can_not_be_compared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInputError, match="name the files of events with -i"):
        DirectionOptions(checkpoint=Path("x"), inputs=())
    monkeypatch.setattr(module, "read_toy_floor", lambda: ToyFloor({}, 9, "today", "hex"))
    with pytest.raises(BadInputError, match="known for the array 'hex' alone"):
        evaluated(tmp_path, Path("x"), simulated=True)
    models = {name: NearTruth(run_of(tmp_path / name)) for name in "ab"}
    models["b"].detector = Detector(Geometry(icecube_geometry().position_S3[:60]))
    monkeypatch.setattr(module, "EVALUATION", replace(EVALUATION, load=lambda place, device: models[place.name]))
    answer = CliRunner().invoke(evaluate_command, ["a", "-i", "x", "--beside", "b"], obj=FrontDoor())
    assert re.match(r"--beside: .*b: its 60 sensors are not those of the 5160 of .*a, by number", str(answer.exception))


def test_clean_sensors_are_counted_once_each(tmp_path: Path) -> None:
    arrays = direction_arrays(tmp_path, (40, 0, 3))
    for event, counted in enumerate(clean_sensors(arrays)):
        own = slice(*arrays.offsets[event : event + 2].tolist())
        clean = ~np.asarray(arrays.particle_columns["auxiliary"][own, 0], np.bool_)
        assert counted == len(np.unique(arrays.particle_columns["sensor"][own, 0][clean]))


def test_fits_are_those_of_the_files_and_computed_where_they_lack(tmp_path: Path) -> None:
    arrays, geometry = direction_arrays(tmp_path, (25, 0, 30, 40)), icecube_geometry()
    predictions = [Predicted(np.ones((4, 3)), np.ones((4, 2)), 0)]
    fresh = predicted_events(arrays, predictions, geometry)[0].baselines
    assert set(fresh) == {"line", "pandel"}
    np.testing.assert_allclose(np.linalg.norm(fresh["pandel"], axis=1), 1)
    arrays.event_columns["classical_fits"][2, TRACK_FIT] = (0, 0.6, -0.8)
    mixed = predicted_events(arrays, predictions, geometry)[0].baselines["pandel"]
    np.testing.assert_allclose(mixed[2], (0, 0.6, -0.8), rtol=1e-6)
    np.testing.assert_allclose(mixed[[0, 1, 3]], fresh["pandel"][[0, 1, 3]], atol=1e-3)


def test_only_the_chosen_events_are_left_with_their_pulses(tmp_path: Path) -> None:
    arrays = direction_arrays(tmp_path, (3, 4, 0, 2))
    some = only(arrays, np.array([False, True, True, True]))
    assert some.offsets.tolist() == [0, 4, 4, 6]
    assert some.event_columns["event_id"][:, 0].tolist() == [1, 2, 3]
    assert np.array_equal(some.particle_columns["pulses"], arrays.particle_columns["pulses"][3:])
    assert only(arrays, np.ones(4, np.bool_)) is arrays
