"""`icestream export`: the files say what the trained model says, and the card says what the files are."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from torch import Tensor
from trained import make_likelihood_sampler, make_sampler, write_checkpoint

from common.errors import BadInputError
from services.config.root import Config
from workloads.base.kernels.operators import LIBRARY
from workloads.muons.commands.export import export
from workloads.muons.export import check, formats
from workloads.muons.export.card import covered
from workloads.muons.export.export import OWN_FILES, functions_of
from workloads.muons.export.functions import COUNTS_INPUTS, CountsFunction, GeneratorFunction, ModelFunctions
from workloads.muons.export.inputs import FunctionInput
from workloads.muons.export.likelihood import LikelihoodFunction
from workloads.muons.export.run import default_report
from workloads.muons.export.usage import program
from workloads.muons.export.wgan import WganFunction
from workloads.muons.generation.load import load_trained
from workloads.muons.models.likelihood.sampler import LikelihoodSampler
from workloads.muons.models.standardise import Standardise
from workloads.muons.models.wgan.config import NetworkConfig
from workloads.muons.models.wgan.sampler import WganSampler

MODELS = ("wgan", "likelihood")
SECRET_INPUT = "https://user:hunter2@origin.example/data.parquet?authz=eyJhbGciOi.eyJzdWIi.c2ln"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config_of(model: str = "wgan", **network: object) -> Config:
    section = {"network": {"hidden": 16, "count_hidden": 16, **network}}
    return Config.model_validate(
        {"input": (SECRET_INPUT, "data/*.parquet"), "trainer": {"model": model, model: section}}
    )


def sampler_of(config: Config) -> WganSampler | LikelihoodSampler:
    if config.trainer.model == "wgan":
        return make_sampler(config.trainer.wgan, count_steps=60)
    return make_likelihood_sampler(config.trainer.likelihood, count_steps=60)


def function_of(config: Config) -> GeneratorFunction:
    """Of the model that `make_run` writes."""
    sampler = sampler_of(config)
    return WganFunction(sampler) if isinstance(sampler, WganSampler) else LikelihoodFunction(sampler)


def make_run(folder: Path, config: Config) -> Path:
    write_checkpoint(folder / "checkpoints" / "step-000000007.pt", config, sampler_of(config))
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(export, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("export"), config_of())


class Export(NamedTuple):
    """A model in both formats, and what was printed."""

    model: str
    folder: Path
    told: str


@pytest.fixture(scope="session", params=MODELS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Seconds: it is done once for each model."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model") / "model"
    run_dir = make_run(tmp_path_factory.mktemp("run"), config_of(request.param))
    metric = {"value": 0.0123, "error": 0.001, "floor": 0.004}
    beside = {"metrics": {"count_tv": metric}}
    report = {"step": 7, "events": 5000, "input": SECRET_INPUT, "metrics": {"count_tv": metric}, "beside": beside}
    (run_dir / "evaluation").mkdir()
    (run_dir / "evaluation" / "report.json").write_text(json.dumps(report))
    result = run(run_dir, "-o", folder, "--licence", "CC BY 4.0")
    assert result.exit_code == 0
    return Export(request.param, folder, result.output)


@pytest.mark.slow
def test_an_exported_program_has_none_of_the_operators_that_icestream_registers(exported: Export) -> None:
    programs = [torch.export.load(path) for path in exported.folder.glob("*.pt2")]
    assert programs
    for one in programs:
        assert not [node for node in one.graph.nodes if LIBRARY.ns in str(node.target)]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
@pytest.mark.parametrize(("num_events", "num_particles"), [(1, 0), (3, 0), (1, 1), (1, 900), (70, 2500)])
def test_every_format_gives_the_muons_of_the_trained_model(
    exported: Export, suffix: str, num_events: int, num_particles: int
) -> None:
    function = function_of(config_of(exported.model))
    inputs = check.generator_inputs(function, num_events, num_particles, seed=99)
    loaded = formats.load(exported.folder / f"generator.{suffix}", function.names)
    assert loaded(*inputs)[0].shape == (num_particles, 3)
    assert check.muons_difference(loaded, function, inputs) < 2e-5


@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_every_format_gives_the_distribution_of_counts(exported: Export, suffix: str) -> None:
    """The documented recipe draws what the trained model draws."""
    sampler = sampler_of(config_of(exported.model))
    primary_E4 = torch.tensor([[3e6, 0.3, 56.0, 1500.0]]).expand(40_000, 4).contiguous()
    weights, means, shapes = formats.load(exported.folder / f"counts.{suffix}", COUNTS_INPUTS)(primary_E4)
    torch.testing.assert_close(weights.sum(1), torch.ones(40_000))
    mean = float((weights * means).sum(1)[0])
    variance = float((weights * (means + means**2 / shapes + means**2)).sum(1)[0]) - mean**2
    counts_E = sampler.draw_counts(primary_E4, torch.Generator().manual_seed(1)).double()
    error = (variance / len(counts_E)) ** 0.5
    assert abs(float(counts_E.mean()) - mean) < 5 * error
    assert float(counts_E.var()) == pytest.approx(variance, rel=0.2)


@pytest.mark.process
@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_the_cards_program_runs_without_icestream(exported: Export, suffix: str) -> None:
    folder, inputs = exported.folder, function_of(config_of(exported.model)).inputs
    text = program(suffix, inputs, max_count=100_000)
    assert text.rstrip() in (folder / "MODEL_CARD.md").read_text()
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{text}\nprint(len(muons), counts.sum(), np.isfinite(muons).all())"],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert told.stderr == ""
    num_muons, num_counted, finite = told.stdout.split()
    assert num_muons == num_counted
    assert int(num_muons) > 0
    assert finite == "True"


def test_the_folder_holds_the_files_and_their_digests(exported: Export) -> None:
    _, folder, told = exported
    assert {path.name for path in folder.iterdir()} == OWN_FILES
    card = json.loads((folder / "model_card.json").read_text())
    assert set(card["files"]) == {name for name in OWN_FILES if "card" not in name.lower()}
    for name, file in card["files"].items():
        assert file["sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert file["difference_to_trained"] <= check.LARGEST_DIFFERENCE
        assert f"{name}: {file['bytes']:,} bytes, differs from the trained model by at most" in told


def test_the_card_tells_training_metrics_limits_and_no_secret(exported: Export) -> None:
    _, folder, told = exported
    text = (folder / "MODEL_CARD.md").read_text()
    card = json.loads((folder / "model_card.json").read_text())
    assert "with 1 metrics" in told
    assert "| count_tv | 0.0123 | 0.001 | 0.004 |" in text
    assert "`data/*.parquet`" in text
    assert "CC BY 4.0." in text
    assert card["training"]["steps"] == 7
    assert set(card["evaluation"]) == {"step", "events", "input"}, "not another run's numbers"
    assert card["model"] == exported.model
    assert card["configuration"]["trainer"][exported.model]["network"]["hidden"] == 16
    assert card["parameters"] == sum(one.numel() for one in function_of(config_of(exported.model)).network.parameters())
    assert f"({card['parameters']:,} weights, and {card['count_parameters']:,} for the number of muons)" in text
    assert "| | from about | to about |" in text
    assert "must not" in text
    for secret in ("hunter2", "c2ln"):
        assert secret not in text
        assert secret not in json.dumps(card)


def test_covered_ranges_are_those_of_the_primaries() -> None:
    """The bench preset: 1e5 to 1e8 GeV, 0 to 80°, A from 1 to 56, 1,000 to 2,800 m; two spreads about the mean."""
    ranges = covered(make_sampler(config_of().trainer.wgan).standardise)
    assert 3e4 < ranges["energy_gev"]["from"] < 1.1e5
    assert 1e6 < ranges["energy_gev"]["to"] < 1e8
    assert 0 <= ranges["zenith_rad"]["from"] < 0.3
    assert 1.2 < ranges["zenith_rad"]["to"] < 1.6
    assert ranges["mass_a"]["from"] == 1
    assert 50 < ranges["mass_a"]["to"] < 300
    assert 700 < ranges["depth_m"]["from"] < 1300
    assert 2500 < ranges["depth_m"]["to"] < 4000


def test_typical_primaries_are_standardised_to_mean_0_and_spread_1() -> None:
    standardise = make_sampler(config_of().trainer.wgan).standardise
    primary_E4 = check.typical_primaries(standardise, 20_000, torch.Generator().manual_seed(1))
    conditions_EC = standardise.conditions(primary_E4)
    for column in (0, 4):  # the others have bounds
        assert float(conditions_EC[:, column].mean()) == pytest.approx(0, abs=0.05)
        assert float(conditions_EC[:, column].std()) == pytest.approx(1, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_model_that_learned_x_and_y_has_the_same_inputs(model: str, tmp_path: Path) -> None:
    config = config_of(model, azimuth="learned")
    run_dir = make_run(tmp_path / "run", config)
    run(run_dir, "-o", tmp_path / "model", "--format", "onnx")  # whose exporter would drop an input without effect
    function = function_of(config)
    assert function.names == function_of(config_of(model)).names
    loaded = formats.load(tmp_path / "model" / "generator.onnx", function.names)
    assert check.muons_difference(loaded, function, check.generator_inputs(function, 9, 100)) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_a_coupled_model_is_exported(suffix: str, tmp_path: Path) -> None:
    config = config_of("likelihood", coupling=True)
    run_dir = make_run(tmp_path / "run", config)
    result = run(run_dir, "-o", tmp_path / "model", "--format", suffix)
    assert result.exit_code == 0, result.output
    function = function_of(config)
    loaded = formats.load(tmp_path / "model" / f"generator.{suffix}", function.names)
    for num_events, num_particles in ((1, 0), (1, 900), (70, 2500)):
        inputs = check.generator_inputs(function, num_events, num_particles, seed=99)
        assert check.muons_difference(loaded, function, inputs) < 2e-5


def test_nothing_is_written_if_the_files_disagree(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: GeneratorFunction, features_PF: Tensor, azimuth_P: Tensor) -> Tensor:
        return torch.stack([features_PF[:, 0], azimuth_P, azimuth_P], 1)

    monkeypatch.setattr(GeneratorFunction, "_muons", wrong)
    with pytest.raises(BadInputError, match=r"generator\.pt2 differs from the trained model by"):
        run(run_dir, "-o", tmp_path / "model", "--format", "pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_difference_in_one_number_or_in_shape_is_seen() -> None:
    sampler = make_sampler(config_of().trainer.wgan)
    function = WganFunction(sampler)
    counts = CountsFunction(sampler.standardise, sampler.count_head)  # type: ignore[arg-type]

    def shifted(*inputs: Tensor) -> Sequence[Tensor]:
        muons_P3 = function.trained_muons(inputs).clone()
        muons_P3[-1:, 2] += 0.001 * (1 + muons_P3[-1:, 2].abs())
        return [muons_P3]

    def shorter(*inputs: Tensor) -> Sequence[Tensor]:
        return [function.trained_muons(inputs)[1:]]

    def other_counts(primary_E4: Tensor) -> Sequence[Tensor]:
        weights, means, shapes = counts(primary_E4)
        return [weights, means, shapes * 1.01]

    def same(*inputs: Tensor) -> Sequence[Tensor]:
        return [function.trained_muons(inputs)]

    assert check.generator_difference(shifted, function) > check.LARGEST_DIFFERENCE
    assert check.generator_difference(shorter, function) == np.inf
    assert check.generator_difference(same, function) == 0
    assert check.counts_difference(other_counts, counts) > check.LARGEST_DIFFERENCE


class Choice(GeneratorFunction):
    """An energy of 1 or 2, as a uniform number is below or above a half."""

    inputs = (FunctionInput("part", "particles", "uniform", 0, "", chooses=True),)

    def trained_features(self, inputs: tuple[Tensor, ...]) -> Tensor:
        energy_P = torch.where(inputs[0] > 0.5, 2.0, 1.0)
        return torch.stack([energy_P.log10(), energy_P, energy_P], 1)


def test_a_component_that_rounding_chooses_is_no_difference_and_any_other_one_is() -> None:
    function = Choice(Standardise(NetworkConfig(azimuth="learned")), torch.nn.Identity())
    for value, is_sure in ((0.5000001, False), (0.501, True)):
        inputs = (torch.cat([torch.full((1,), value), torch.rand(100)]),)

        def other(*inputs: Tensor) -> Sequence[Tensor]:
            muons_P3 = function.trained_muons(inputs).clone()
            muons_P3[0] *= 0.5
            return [muons_P3]

        assert (check.muons_difference(other, function, inputs) > check.LARGEST_DIFFERENCE) is is_sure


def test_a_function_that_is_hardly_compared_is_not_taken_for_the_same() -> None:
    class Continuous(Choice):
        def trained_features(self, inputs: tuple[Tensor, ...]) -> Tensor:
            return torch.stack([inputs[0]] * 3, 1)

    function = Continuous(Standardise(NetworkConfig(azimuth="learned")), torch.nn.Identity())
    assert check.generator_difference(lambda *inputs: [function.trained_muons(inputs)], function) == np.inf


def test_what_is_in_the_way_is_told_and_replaced_only_if_told(run_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "generator.pt2").write_text("old")
    (folder / "generator.onnx").write_text("old")
    with pytest.raises(BadInputError, match="--force"):
        run(run_dir, "-o", folder, "--format", "pt2")
    assert (folder / "generator.pt2").read_text() == "old"
    assert run(run_dir, "-o", folder, "--format", "pt2", "--force").exit_code == 0
    assert not (folder / "generator.onnx").exists()
    (folder / "thesis.txt").touch()
    with pytest.raises(BadInputError, match=r"thesis\.txt"):
        run(run_dir, "-o", folder, "--format", "pt2", "--force")


def test_a_report_that_is_named_must_be_one(run_dir: Path, tmp_path: Path) -> None:
    texts = {"no.json": None, "bad.json": "{", "other.json": "{}"} | {
        f"{i}.json": json.dumps({"metrics": {"count_tv": metric}}) for i, metric in enumerate((3, {"value": "low"}))
    }
    for name, text in texts.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(BadInputError, match=name):
            run(run_dir, "-o", tmp_path / "model", "--report", tmp_path / name)


@pytest.mark.slow
def test_the_card_says_if_its_metrics_are_of_other_weights(run_dir: Path, tmp_path: Path) -> None:
    for step in (7, 9):
        report = {"step": step, "metrics": {"count_tv": {"value": 0.1, "error": None, "floor": 0.1}}}
        (tmp_path / "report.json").write_text(json.dumps(report))
        model = tmp_path / f"model-{step}"
        told = run(run_dir, "-o", model, "--format", "pt2", "--report", tmp_path / "report.json").output
        text = (model / "MODEL_CARD.md").read_text()
        another = "are of the weights at step 9, and this model is of step 7"
        assert (another in text) is (another in told) is ("**Not of this model**" in text) is (step == 9)


def test_the_report_is_looked_for_where_evaluate_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_report(tmp_path / "model.pt") == tmp_path / "model-evaluation" / "report.json"
    of_run = tmp_path / "run" / "evaluation" / "report.json"
    assert default_report(tmp_path / "run" / "checkpoints" / "best.pt") == of_run
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "run" / "checkpoints")
    assert default_report(Path("best.pt")) == of_run


def test_a_folder_may_be_the_current_one_or_a_link(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "write", lambda *arguments: arguments[-1].write_text("model"))
    monkeypatch.setattr(check, "generator_difference", lambda *_: 0.0)
    monkeypatch.setattr(check, "counts_difference", lambda *_: 0.0)
    monkeypatch.setattr(formats, "load", lambda *_: None)
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    assert run(run_dir, "-o", ".", "--format", "pt2").exit_code == 0
    (tmp_path / "link").symlink_to(tmp_path / "model")
    assert run(run_dir, "-o", tmp_path / "link", "--format", "pt2", "--force").exit_code == 0
    assert {path.name for path in (tmp_path / "model").iterdir()} < OWN_FILES
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match="/file is no folder; choose another place"):
        run(run_dir, "-o", tmp_path / "file" / "model", "--format", "pt2")


def test_another_kind_of_model_is_refused(run_dir: Path) -> None:
    trained = load_trained(run_dir, torch.device("cpu"))
    assert isinstance(functions_of(trained), ModelFunctions)
    with pytest.raises(BadInputError, match="a model of the kind 'wgan' can't be exported: use icestream generate"):
        functions_of(replace(trained, generator=object()))  # type: ignore[arg-type]


def test_missing_packages_are_told_before_any_work(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "_ONNX_PACKAGES", ("onnx", "no_such_package"))
    with pytest.raises(BadInputError, match=r"ONNX needs: .*'\.\[export\]' \(in the clone\), or use --format pt2"):
        run(run_dir, "-o", tmp_path / "model")
