"""Functions of the Python API, and the paths that they take."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from muon_files import make_events, write_events
from trained import write_run

import icestream
from common.options import given_inputs
from icestream.cli import cli
from services.config.root import Config
from services.trainer.position import StreamPosition
from tests.workloads.muons.evaluation.tiny_run import write_tiny_run
from workloads.base.checkpoint import FORMAT
from workloads.base.context import StepContext
from workloads.base.report.page import EvaluationOptions
from workloads.direction.evaluation import DirectionOptions
from workloads.direction.geometry import GEOMETRY_FILE, read_geometry
from workloads.direction.models.config import SetsConfig
from workloads.direction.models.task import DirectionTask
from workloads.muons import evaluation as muon_evaluation
from workloads.muons.evaluation import EvaluationRequest

FIELDS = ("energy_gev", "zenith_rad", "mass_a", "depth_m")


@pytest.fixture(scope="session")
def muon_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("muon-run"))


@pytest.fixture(scope="session")
def neutrinos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return icestream.simulate(tmp_path_factory.mktemp("neutrinos"), workload="direction", events=12, files=2)


@pytest.fixture(scope="session")
def direction_run(tmp_path_factory: pytest.TempPathFactory, neutrinos: Path) -> Path:
    section = SetsConfig(geometry=str(neutrinos / GEOMETRY_FILE))
    task = DirectionTask("sets", section, StepContext(torch.device("cpu"), 1))
    trainer = {"model": "sets", "sets": section.model_dump()}
    config = Config.model_validate({"input": ["data"], "workload": "direction", "trainer": trainer})
    state = {"config": config.model_dump_json(), "position": StreamPosition().model_dump_json()}
    folder = tmp_path_factory.mktemp("direction-run")
    (folder / "checkpoints").mkdir()
    checkpoint = {"format": FORMAT, "task": task.state_dict(), "step": 3, **state}
    torch.save(checkpoint, folder / "checkpoints" / "step-000000003.pt")
    return folder


def test_positions_of_sensors_are_read_from_the_folder_a_file_in_it_or_the_table(neutrinos: Path) -> None:
    expected = read_geometry(neutrinos / GEOMETRY_FILE).position_S3
    for place in (neutrinos, str(neutrinos / "events_00000.parquet"), neutrinos / GEOMETRY_FILE):
        assert np.array_equal(icestream.geometry(place).numpy(), expected)
    with pytest.raises(icestream.BadInputError, match=r"sensor_geometry\.csv: can't be read"):
        icestream.geometry(neutrinos / "nowhere")


def primaries(number: int = 50) -> np.ndarray:
    rng = np.random.default_rng(1)
    energy = 10 ** rng.uniform(5, 7, number)
    return np.stack([energy, rng.uniform(0, 1, number), np.full(number, 4.0), np.full(number, 1500.0)], 1)


def typed(*arguments: object) -> None:
    answer = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"preset": "heavy", "energy": (1e5, 1e6)}, ["--preset", "heavy", "--energy", "1e5", "1e6"]),
        ({"workload": "direction", "array": "hex"}, ["--workload", "direction", "--array", "hex"]),
    ],
)
def test_simulated_files_are_those_of_the_command(
    tmp_path: Path, options: dict[str, Any], arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = icestream.simulate(tmp_path / "api", events=60, files=2, seed=3, **options)
    assert folder == tmp_path / "api"
    assert capfd.readouterr() == ("", "")
    typed("simulate", tmp_path / "cli", "--events", 60, "--files", 2, "--seed", 3, *arguments)
    assert contents(folder) == contents(tmp_path / "cli")
    with pytest.raises(icestream.BadInputError, match="overwrite it with force"):
        icestream.simulate(folder, events=60, files=2, **options)
    icestream.simulate(folder, events=30, files=1, force=True, **options)
    assert contents(folder) != contents(tmp_path / "cli")


def test_events_that_cannot_be_simulated_are_refused(tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"workload": "pions"}, "no workload 'pions'; there are muons"),
        ({"preset": "benhc"}, "unknown preset 'benhc'"),
        ({"events": 1, "files": 2}, "every file needs at least one event"),
        ({"seed": True}, r"seed = True: expected a whole number$"),
        ({"seed": True, "workload": "direction"}, r"seed = True: expected a whole number$"),
        ({"seed": 1.5}, r"seed = 1\.5: expected a whole number$"),
    ]
    for options, why in refused:
        with pytest.raises(icestream.BadInputError, match=why):
            icestream.simulate(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_bundles_in_memory_are_those_that_the_command_writes(
    muon_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    values = primaries()
    table = pa.table({name: values[:, index] for index, name in enumerate(FIELDS)})
    pq.write_table(table, tmp_path / "primaries.parquet")
    model = icestream.load(muon_run, device="cpu")
    found = model.generate(values, seed=5)
    assert capfd.readouterr() == ("", "")
    out = tmp_path / "out.parquet"
    typed("generate", muon_run, tmp_path / "primaries.parquet", "-o", out, "--seed", 5, "--device", "cpu")
    written = pq.read_table(out)
    assert found.table().equals(written)
    assert len(found) == 50
    assert found.offsets.tolist() == np.concatenate([[0], np.cumsum([len(one) for one in written["muons"]])]).tolist()
    assert found.muons.shape == (found.offsets[-1], 3)
    np.testing.assert_array_equal(found.primary, values.astype(np.float32))
    assert not model.generate(values, seed=6).table().equals(written)


def test_primaries_may_have_any_usual_form(muon_run: Path, tmp_path: Path) -> None:
    values = primaries()
    columns = {name: values[:, index] for index, name in enumerate(FIELDS)}
    path = tmp_path / "primaries.parquet"
    pq.write_table(pa.table(columns), path)
    model = icestream.load(muon_run, device="cpu")
    wanted = model.generate(values).table()
    forms: list[Any] = [values.astype(np.float32), torch.from_numpy(values), columns, {"primary": values}]
    forms += [pa.table(columns), pa.record_batch(columns), path, str(path), [path]]
    for form in forms:
        assert model.generate(form).table().equals(wanted), type(form)


def test_ids_and_numbers_of_muons_come_with_the_columns(muon_run: Path) -> None:
    values = primaries(3)
    rows = {"primary_major_id": [7, 7, 8], "primary_minor_id": [1, 2, 3], "primary": values, "num_muons": [2, 0, 5]}
    model = icestream.load(muon_run / "checkpoints" / "step-000000007.pt", device="cpu")
    found = model.generate(rows, counts="column")
    assert found.primary_id.tolist() == [[7, 1], [7, 2], [8, 3]]
    assert found.offsets.tolist() == [0, 2, 2, 7]
    assert model.generate(values, counts=4).offsets.tolist() == [0, 4, 8, 12]
    capped = model.generate(values, counts=4, max_count=3)
    assert (capped.offsets.tolist(), capped.num_capped) == ([0, 3, 6, 9], 3)
    assert len(model.generate(np.empty((0, 4))).table()) == 0
    assert model.generate(values, depths_m=[2000, 1500]).primary[:, 3].tolist() == [2000, 1500] * 3
    with pytest.raises(icestream.BadInputError, match="depths 'deep': expected numbers"):
        model.generate(values, depths_m="deep")  # type: ignore[arg-type]


REFUSED: list[tuple[Any, str]] = [
    (np.ones((3, 5)), r"primary has the shape \(3, 5\); expected \(E, 4\): energy_gev, zenith_rad, mass_a, depth_m"),
    (np.ones(4), r"primary has the shape \(4,\); expected \(E, 4\)"),
    (3.0, "expected"),
    (np.array([["a"] * 4]), "expected numbers, files, or columns"),
    ([[1.0, 2.0], [3.0]], "no array of numbers"),
    ({"energy_gev": [1.0]}, "zenith_rad, mass_a, depth_m missing"),
    ({name: [1.0] * (index + 1) for index, name in enumerate(FIELDS)}, "columns of different lengths"),
    ({name: [[1.0]] for name in FIELDS}, r"energy_gev has the shape \(1, 1\); expected \(E,\)"),
    ([[1e5, np.nan, 1.0, 1500.0]], "row 0: zenith_rad is nan"),
    ([[1e5, 0.1, 1.0, 1500.0], [-1.0, 0.1, 1.0, 1500.0]], "row 1: energy_gev is -1"),
    (Path("no-such-file.parquet"), "no-such-file.parquet"),
    ([], "expected"),
]


def test_primaries_that_are_none_are_refused_in_one_line(muon_run: Path) -> None:
    model = icestream.load(muon_run, device="cpu")
    for given, why in REFUSED:
        with pytest.raises(icestream.BadInputError, match=why) as caught:
            model.generate(given)
        assert "\n" not in str(caught.value)


def test_directions_in_memory_are_those_that_the_command_writes(
    direction_run: Path, neutrinos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = icestream.load(direction_run, device="cpu").predict(neutrinos)
    assert capfd.readouterr() == ("", "")
    out = tmp_path / "out.parquet"
    typed("predict", direction_run, "-i", neutrinos, "-o", out, "--device", "cpu")
    assert found.equals(pq.read_table(out))
    assert found.num_rows == 12


def test_what_a_model_of_another_workload_does_is_refused_by_name(direction_run: Path, muon_run: Path) -> None:
    directions, muons = icestream.load(direction_run, device="cpu"), icestream.load(muon_run, device="cpu")
    with pytest.raises(icestream.BadInputError, match="of the workload direction has no 'generate'; it has predict"):
        directions.generate(primaries())
    with pytest.raises(icestream.BadInputError, match="has no 'predict'; it has generate"):
        muons.predict("files")
    assert not hasattr(muons, "_repr_html_")
    assert "step 7: generate" in repr(muons)


def test_a_checkpoint_that_is_not_there_or_none_and_missing_events_are_named(muon_run: Path, tmp_path: Path) -> None:
    with pytest.raises(icestream.BadInputError, match="no such checkpoint or run directory"):
        icestream.load(tmp_path / "nothing")
    with pytest.raises(icestream.BadInputError, match="no checkpoint in it"):
        icestream.evaluate(tmp_path)
    (tmp_path / "x.pt").write_bytes(b"no checkpoint")
    with pytest.raises(icestream.BadInputError, match=r"x\.pt: can't be read"):
        icestream.load(tmp_path / "x.pt")
    with pytest.raises(icestream.BadInputError, match="files with inputs, or simulate PRESET"):
        icestream.evaluate(muon_run)
    with pytest.raises(icestream.BadInputError, match="events 3: at least 100"):
        icestream.evaluate(muon_run, "files", events=3)


@pytest.mark.slow
def test_an_evaluation_is_the_commands_and_leaves_the_process_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(muon_evaluation.GALLERY, "draw", lambda shown: [])
    write_tiny_run(tmp_path / "run")
    held_out = icestream.simulate(tmp_path / "held-out", events=150, files=1, seed=2)
    fast: dict[str, Any] = {"bootstraps": 2, "c2st_epochs": 1, "device": "cpu"}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        report = icestream.evaluate(tmp_path / "run", held_out, simulated="bench", **fast)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "run" / "evaluation").exists()
    typed(
        *("evaluate", tmp_path / "run", "-i", held_out, "--simulated", "bench", "-o", tmp_path / "cli"),
        *("--bootstraps", 2, "--c2st-epochs", 1, "--device", "cpu"),
    )
    page = report.write(tmp_path / "api")
    assert page.read_text().startswith("<!")
    api, cli_ = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("api", "cli"))
    assert api["metrics"] == cli_["metrics"]
    assert list(report) == list(api["metrics"])
    name = next(name for name, one in api["metrics"].items() if one["floor"] is not None)
    metric, stored = report[name], api["metrics"][name]
    assert (metric.value, metric.error, metric.floor) == (stored["value"], stored["error"], stored["floor"])
    assert name in str(report)


PATH_OPTIONS = {"checkpoint", "output", "thresholds", "toml", "beside"}


class Place:
    """Path of another library."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


@pytest.mark.parametrize("options", [EvaluationRequest, DirectionOptions])
def test_each_path_among_the_options_of_an_evaluation_takes_any_form(
    options: type[EvaluationOptions], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert {name for name, kind in get_type_hints(options).items() if "Path" in str(kind)} == PATH_OPTIONS
    given: dict[str, Any] = {name: Place(Path(f"{name}.x")) for name in PATH_OPTIONS}
    found = options.given(inputs=("files",), **given)
    assert {name: getattr(found, name) for name in given} == {name: tmp_path / f"{name}.x" for name in given}
    assert options.given(checkpoint="~/x", inputs=("files",)).checkpoint == Path.home() / "x"


def test_each_argument_that_is_a_path_takes_any_form(tmp_path: Path) -> None:
    form: Any = Place
    file = write_events(tmp_path / "one.parquet", make_events([1, 2]))
    (tmp_path / "x.toml").write_text("seed = 7\n")
    stream = icestream.stream(form(file), run_dir=form(tmp_path / "run"), config=form(tmp_path / "x.toml"))
    assert stream.config.input == (str(file),)
    assert stream.config.seed == 7
    assert stream.run_dir == tmp_path / "run"
    assert icestream.simulate(form(tmp_path / "sim"), events=2, files=1) == tmp_path / "sim"
    missing = form(tmp_path / "missing")
    for verb in (icestream.load, icestream.evaluate):
        with pytest.raises(icestream.BadInputError, match="missing: no such checkpoint or run directory"):
            verb(missing)
    assert given_inputs(form(tmp_path), "files") == given_inputs([form(tmp_path)], "files") == (str(tmp_path),)


def test_an_argument_that_is_no_path_is_named(tmp_path: Path) -> None:
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: icestream.stream("x", run_dir=3), "run_dir"),  # type: ignore[arg-type]
        (lambda: icestream.stream("x", config=3), "config"),  # type: ignore[arg-type]
        (lambda: icestream.simulate(3), "path"),  # type: ignore[arg-type]
        (lambda: icestream.load(3), "run"),  # type: ignore[arg-type]
        (lambda: icestream.evaluate(3), "run"),  # type: ignore[arg-type]
        (lambda: EvaluationRequest.given(checkpoint=tmp_path, inputs=("files",), beside=3), "beside"),
    ]
    for call, name in calls:
        with pytest.raises(icestream.BadInputError, match=f"^{name} = 3: expected a path"):
            call()
