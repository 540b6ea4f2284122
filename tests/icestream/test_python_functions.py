"""Python functions of the package: simulate, load, evaluate. They do what the commands do, quietly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from trained import make_sampler, write_checkpoint

import icestream
from icestream.cli import cli
from services.config.root import Config
from services.trainer.stream.position import StreamPosition
from tests.workloads.muons.evaluation.tiny_run import write_tiny_run
from workloads.base.checkpoint import FORMAT
from workloads.base.context import StepContext
from workloads.direction.geometry import GEOMETRY_FILE
from workloads.direction.models.sets.config import SetsConfig, SetsNetworkConfig
from workloads.direction.models.sets.task import SetsTask
from workloads.muons.evaluation import evaluate as muon_evaluation
from workloads.muons.models.wgan.config import NetworkConfig, WganConfig

FIELDS = ("energy_gev", "zenith_rad", "mass_a", "depth_m")


@pytest.fixture(scope="session")
def muon_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wgan = WganConfig(network=NetworkConfig(hidden=16, count_hidden=16))
    config = Config(input=("data",))
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"wgan": wgan})})
    folder = tmp_path_factory.mktemp("muon-run")
    write_checkpoint(folder / "checkpoints" / "step-000000007.pt", config, make_sampler(wgan, count_steps=100))
    return folder


@pytest.fixture(scope="session")
def neutrinos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return icestream.simulate(tmp_path_factory.mktemp("neutrinos"), workload="direction", events=120, files=2)


@pytest.fixture(scope="session")
def direction_run(tmp_path_factory: pytest.TempPathFactory, neutrinos: Path) -> Path:
    network = SetsNetworkConfig(hidden=8, layers=2, trust_hidden=8, trust_layers=1)
    section = SetsConfig(network=network, geometry=str(neutrinos / GEOMETRY_FILE))
    task = SetsTask(section, StepContext(torch.device("cpu"), 1))
    trainer = {"model": "sets", "sets": section.model_dump()}
    config = Config.model_validate({"input": ["data"], "workload": "direction", "trainer": trainer})
    state = {"config": config.model_dump_json(), "position": StreamPosition().model_dump_json()}
    folder = tmp_path_factory.mktemp("direction-run")
    (folder / "checkpoints").mkdir()
    checkpoint = {"format": FORMAT, "task": task.state_dict(), "step": 3, **state}
    torch.save(checkpoint, folder / "checkpoints" / "step-000000003.pt")
    return folder


def primaries(number: int = 50) -> np.ndarray:
    rng = np.random.default_rng(1)
    energy = 10 ** rng.uniform(5, 7, number)
    return np.stack([energy, rng.uniform(0, 1, number), np.full(number, 4.0), np.full(number, 1500.0)], 1)


def typed(*arguments: object) -> None:
    answer = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_name_that_the_package_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'simulat'"):
        icestream.simulat  # noqa: B018


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"preset": "heavy", "depth_kind": "slant"}, ["--preset", "heavy", "--depth-kind", "slant"]),
        ({"workload": "direction", "array": "hexagon"}, ["--workload", "direction", "--array", "hexagon"]),
    ],
)
def test_simulated_files_are_those_of_the_command(
    tmp_path: Path, options: dict[str, Any], arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    if options.get("array"):
        from workloads.direction.geometry import ARRAYS

        options["array"] = arguments[-1] = next(name for name in ARRAYS if name != "icecube")
    folder = icestream.simulate(tmp_path / "api", events=60, files=2, seed=3, **options)
    assert folder == tmp_path / "api"
    assert capfd.readouterr() == ("", "")
    typed("simulate", tmp_path / "cli", "--events", 60, "--files", 2, "--seed", 3, *arguments)
    assert contents(folder) == contents(tmp_path / "cli")
    with pytest.raises(icestream.BadInputError, match="overwrite it with force"):
        icestream.simulate(folder, events=60, files=2, **options)
    icestream.simulate(folder, events=30, files=1, force=True, **options)
    assert contents(folder) != contents(tmp_path / "cli")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"workload": "pions"}, "no workload 'pions'; there are muons"),
        ({"preset": "benhc"}, "unknown preset 'benhc'"),
        ({"events": 1, "files": 2}, "every file needs at least one event"),
        ({"seed": True}, r"seed = True: expected a whole number$"),
        ({"seed": True, "workload": "direction"}, r"seed = True: expected a whole number$"),
        ({"seed": 1.5}, r"seed = 1\.5: expected a whole number$"),
        ({"workload": "direction", "layout": "round"}, "use one of converted, kaggle"),
    ],
)
def test_events_that_cannot_be_simulated_are_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
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


@pytest.mark.parametrize("form", ["float32", "tensor", "mapping", "matrix", "table", "batch", "path", "text", "paths"])
def test_primaries_may_have_any_usual_form(muon_run: Path, tmp_path: Path, form: str) -> None:
    values = primaries()
    columns = {name: values[:, index] for index, name in enumerate(FIELDS)}
    path = tmp_path / "primaries.parquet"
    pq.write_table(pa.table(columns), path)
    forms: dict[str, Any] = {
        "float32": values.astype(np.float32),
        "tensor": torch.from_numpy(values),
        "mapping": columns,
        "matrix": {"primary": values},
        "table": pa.table(columns),
        "batch": pa.record_batch(columns),
        "path": path,
        "text": str(path),
        "paths": [path],
    }
    model = icestream.load(muon_run, device="cpu")
    assert model.generate(forms[form]).table().equals(model.generate(values).table())


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


def test_a_slant_depth_is_the_vertical_one_of_its_direction(muon_run: Path) -> None:
    model = icestream.load(muon_run, device="cpu")
    values = primaries(200)
    vertical, slant = (model.generate(values, depth_kind=kind) for kind in ("vertical", "slant"))
    np.testing.assert_array_equal(slant.primary, vertical.primary)
    assert len(slant.muons) > len(vertical.muons)  # less ice above


def test_bundles_are_awkward_arrays_for_those_who_like_them(muon_run: Path) -> None:
    ak = pytest.importorskip("awkward")
    found = icestream.load(muon_run, device="cpu").generate(primaries())
    events = found.awkward()
    assert ak.num(events.muons, axis=1).to_list() == np.diff(found.offsets).tolist()
    np.testing.assert_array_equal(ak.flatten(events.muons.energy_gev).to_numpy(), found.muons[:, 0])
    np.testing.assert_array_equal(events.primary.depth_m.to_numpy(), found.primary[:, 3])
    assert events.primary_id.major.to_list() == [0] * 50


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            np.ones((3, 5)),
            r"primary has the shape \(3, 5\); expected \(E, 4\): energy_gev, zenith_rad, mass_a, depth_m",
        ),
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
    ],
)
def test_primaries_that_are_none_are_refused_in_one_line(muon_run: Path, given: Any, why: str) -> None:
    model = icestream.load(muon_run, device="cpu")
    with pytest.raises(icestream.BadInputError, match=why) as caught:
        model.generate(given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"counts": "many"}, "counts many: expected sampled"),
        ({"counts": -1}, "counts constant:-1: expected"),
        ({"counts": "column"}, "no column 'muons' or 'num_muons'"),
        ({"seed": -1}, "must not be negative"),
        ({"seed": True}, r"seed = True: expected a whole number$"),
        ({"depth_kind": "deep"}, "use 'vertical' or 'slant'"),
    ],
)
def test_options_of_a_generation_that_make_no_sense_are_refused(
    muon_run: Path, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(icestream.BadInputError, match=why):
        icestream.load(muon_run, device="cpu").generate(primaries(), **options)


def test_directions_in_memory_are_those_that_the_command_writes(
    direction_run: Path, neutrinos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = icestream.load(direction_run, device="cpu").predict(neutrinos)
    assert capfd.readouterr() == ("", "")
    out = tmp_path / "out.parquet"
    typed("predict", direction_run, "-i", neutrinos, "-o", out, "--device", "cpu")
    assert found.equals(pq.read_table(out))
    assert found.num_rows == 120


def test_what_a_model_of_another_workload_does_is_refused_by_name(direction_run: Path, muon_run: Path) -> None:
    directions, muons = icestream.load(direction_run, device="cpu"), icestream.load(muon_run, device="cpu")
    with pytest.raises(icestream.BadInputError, match="of the workload direction has no 'generate'; it has predict"):
        directions.generate(primaries())
    with pytest.raises(icestream.BadInputError, match="has no 'predict'; it has generate"):
        muons.predict("files")
    assert not hasattr(muons, "_repr_html_")
    assert "step 7: generate" in repr(muons)


def test_a_checkpoint_that_is_not_there_or_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(icestream.BadInputError, match="no such checkpoint or run directory"):
        icestream.load(tmp_path / "nothing")
    with pytest.raises(icestream.BadInputError, match="no checkpoint in it"):
        icestream.evaluate(tmp_path)
    (tmp_path / "x.pt").write_bytes(b"no checkpoint")
    with pytest.raises(icestream.BadInputError, match=r"x\.pt: can't be read"):
        icestream.load(tmp_path / "x.pt")


@pytest.mark.slow
def test_an_evaluation_is_the_commands_and_leaves_the_process_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(muon_evaluation, "pictures", lambda *_: [])
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


@pytest.mark.slow
def test_an_evaluation_of_directions_writes_its_page_where_it_is_asked_to(
    direction_run: Path, neutrinos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text("angle_mean_deg = 1e-9\n")
    places: dict[str, Any] = {"output": str(tmp_path / "page"), "thresholds": str(limits)}
    report = icestream.evaluate(str(direction_run), (str(neutrinos),), bootstraps=3, verbose=True, **places)
    assert list(report.missed) == ["angle_mean_deg"]
    assert "sets, step 3" in capfd.readouterr().err
    assert 0 < report["angle_mean_deg"].value < 180
    assert json.loads((tmp_path / "page" / "report.json").read_text())["events"] == 120


def test_an_evaluation_without_events_names_the_arguments_of_the_function(muon_run: Path) -> None:
    with pytest.raises(icestream.BadInputError, match="files with -i, or simulate PRESET"):
        icestream.evaluate(muon_run)
    with pytest.raises(icestream.BadInputError, match="events 3: at least 100"):
        icestream.evaluate(muon_run, "files", events=3)


def test_an_evaluation_refuses_true_as_its_seed(muon_run: Path) -> None:
    with pytest.raises(icestream.BadInputError, match=r"seed = True: expected a whole number$"):
        icestream.evaluate(muon_run, "files", seed=True)
