"""`icestream export`: the files say what the trained model says, and the card says what the files are."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from torch import Tensor
from trained import make_sampler, write_checkpoint

from common.config import SourceConfig
from common.errors import BadInputError
from services.config.root import Config
from workloads.base.checkpoint import TrainedRun
from workloads.muons.commands import export
from workloads.muons.export import run as programs
from workloads.muons.export.functions import CountsFunction, FunctionInput, GeneratorFunction
from workloads.muons.export.run import OWN_FILES, program, read_report
from workloads.muons.models.likelihood_densities import MuonSampler

MODELS = ("wgan", "likelihood")
SECRET_INPUT = "https://user:hunter2@origin.example/data.parquet?authz=eyJhbGciOi.eyJzdWIi.c2ln"


def config_of(model: str = "wgan", **network: object) -> Config:
    section = {"network": {"hidden": 16, **network}}
    return Config.model_validate(
        {"input": (SECRET_INPUT, "data/*.parquet"), "trainer": {"model": model, model: section}}
    )


def sampler_of(config: Config) -> MuonSampler:
    model = config.trainer.wgan if config.trainer.model == "wgan" else config.trainer.likelihood
    return make_sampler(model, count_steps=60)


def function_of(config: Config) -> GeneratorFunction:
    """Of the model that `make_run` writes."""
    return GeneratorFunction(sampler_of(config))


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
    """Seconds: it is done once for each model, as long as all tests of it have the same markers (tests/conftest.py)."""
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


def check_muons(path: Path, function: GeneratorFunction) -> None:
    loaded = programs.load_program(path, function.names)
    for num_events, num_particles in ((3, 0), (1, 1), (9, 100), (70, 2500)):
        inputs = programs.generator_inputs(function, num_events, num_particles, seed=99)
        assert loaded(*inputs)[0].shape == (num_particles, 3)
        assert programs.muons_difference(loaded, function, inputs) < 2e-5


@pytest.mark.process
@pytest.mark.slow
def test_every_format_gives_the_muons_of_the_trained_model_and_the_cards_program_runs_without_icestream(
    exported: Export,
) -> None:
    folder, function = exported.folder, function_of(config_of(exported.model))
    for suffix in ("pt2", "onnx"):
        check_muons(folder / f"generator.{suffix}", function)
        text = program(suffix, function.inputs, max_count=100_000)
        assert text.rstrip() in (folder / "MODEL_CARD.md").read_text()
        shown = f"{text}\nprint(len(muons), counts.sum(), np.isfinite(muons).all())"
        told = subprocess.run(
            [sys.executable, "-W", "error", "-c", shown], cwd=folder, capture_output=True, text=True, timeout=120
        )
        assert told.stderr == ""
        num_muons, num_counted, finite = told.stdout.split()
        assert (num_muons == num_counted, int(num_muons) > 0, finite) == (True, True, "True")


@pytest.mark.process
@pytest.mark.slow
def test_the_card_tells_files_training_metrics_and_no_secret(exported: Export) -> None:
    _, folder, told = exported
    assert {path.name for path in folder.iterdir()} == OWN_FILES
    text = (folder / "MODEL_CARD.md").read_text()
    card = json.loads((folder / "model_card.json").read_text())
    assert set(card["files"]) == {name for name in OWN_FILES if "card" not in name.lower()}
    for name, file in card["files"].items():
        assert file["sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert file["difference_to_trained"] <= programs.LARGEST_DIFFERENCE
        assert f"{name}: {file['bytes']:,} bytes, differs from the trained model by at most" in told
    assert "with 1 metrics" in told
    assert "| count_tv | 0.0123 | 0.001 | 0.004 |" in text
    assert "`data/*.parquet`" in text
    assert "CC BY 4.0." in text
    assert card["training"]["steps"] == 7
    assert set(card["evaluation"]) == {"step", "events", "input"}, "not another run's numbers"
    assert card["model"] == exported.model
    assert card["configuration"]["trainer"][exported.model]["network"]["hidden"] == 16
    assert card["parameters"] == sum(
        one.numel()
        for name, one in function_of(config_of(exported.model)).named_parameters()
        if "count_head" not in name
    )
    assert f"({card['parameters']:,} weights, and {card['count_parameters']:,} for the number of muons)" in text
    for secret in ("hunter2", "c2ln"):
        assert secret not in text + json.dumps(card)


@pytest.mark.slow
def test_a_learned_azimuth_is_exported_with_the_same_inputs(tmp_path: Path) -> None:
    config = config_of(azimuth="learned")
    # ONNX's exporter would drop an input without effect.
    result = run(make_run(tmp_path / "run", config), "-o", tmp_path / "model", "--format", "onnx")
    assert result.exit_code == 0, result.output
    function = function_of(config)
    assert function.names == function_of(config_of()).names
    check_muons(tmp_path / "model" / "generator.onnx", function)


def test_nothing_is_written_if_the_files_disagree(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GeneratorFunction, "trained_muons", lambda self, inputs: torch.zeros(len(inputs[-1]), 3))
    with pytest.raises(BadInputError, match=r"generator\.pt2 differs from the trained model by"):
        run(run_dir, "-o", tmp_path / "model", "--format", "pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_difference_in_one_number_or_in_shape_is_seen() -> None:
    sampler = make_sampler(config_of().trainer.wgan)
    function = GeneratorFunction(sampler)
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

    assert programs.generator_difference(shifted, function) > programs.LARGEST_DIFFERENCE
    assert programs.generator_difference(shorter, function) == np.inf
    assert programs.generator_difference(same, function) == 0
    assert programs.counts_difference(other_counts, counts) > programs.LARGEST_DIFFERENCE


class Choice(GeneratorFunction):
    """An energy of 1 or 2, as a uniform number is below or above a half."""

    def trained_muons(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return torch.where(inputs[0] > 0.5, 2.0, 1.0).unsqueeze(1).expand(-1, 3)


def test_a_component_that_rounding_chooses_is_no_difference_and_any_other_one_is() -> None:
    function = Choice(sampler_of(config_of(azimuth="learned")))
    function.inputs = (FunctionInput("part", "particles", "uniform", 0, "", chooses=True),)
    for value, is_sure in ((0.5000001, False), (0.501, True)):
        inputs = (torch.cat([torch.full((1,), value), torch.rand(100)]),)

        def other(*inputs: Tensor) -> Sequence[Tensor]:
            muons_P3 = function.trained_muons(inputs).clone()
            muons_P3[0] *= 0.5
            return [muons_P3]

        assert (programs.muons_difference(other, function, inputs) > programs.LARGEST_DIFFERENCE) is is_sure


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are neither made nor checked, which takes seconds."""
    monkeypatch.setattr(programs, "write_program", lambda *arguments: arguments[-1].write_text("model"))
    monkeypatch.setattr(programs, "generator_difference", lambda *_: 0.0)
    monkeypatch.setattr(programs, "counts_difference", lambda *_: 0.0)
    monkeypatch.setattr(programs, "load_program", lambda *_: None)


@pytest.mark.usefixtures("unchecked")
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


@pytest.mark.usefixtures("unchecked")
def test_the_card_says_if_its_metrics_are_of_other_weights(run_dir: Path, tmp_path: Path) -> None:
    for step in (7, 9):
        report = {"step": step, "metrics": {"count_tv": {"value": 0.1, "error": None, "floor": 0.1}}}
        (tmp_path / "report.json").write_text(json.dumps(report))
        model = tmp_path / f"model-{step}"
        told = run(run_dir, "-o", model, "--format", "pt2", "--report", tmp_path / "report.json").output
        text = (model / "MODEL_CARD.md").read_text()
        another = "they are of step 9 and not 7"
        assert (another in text) is (another in told) is ("**Not of this model**" in text) is (step == 9)


@pytest.mark.usefixtures("unchecked")
def test_a_folder_may_be_the_current_one_or_a_link(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    assert run(run_dir, "-o", ".", "--format", "pt2").exit_code == 0
    (tmp_path / "link").symlink_to(tmp_path / "model")
    assert run(run_dir, "-o", tmp_path / "link", "--format", "pt2", "--force").exit_code == 0
    assert {path.name for path in (tmp_path / "model").iterdir()} < OWN_FILES
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match="/file is no folder; choose another place"):
        run(run_dir, "-o", tmp_path / "file" / "model", "--format", "pt2")


def test_missing_packages_are_told_before_any_work(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_ONNX_PACKAGES", ("onnx", "no_such_package"))
    with pytest.raises(BadInputError, match=r"ONNX needs: .*'\.\[export\]' \(in the clone\), or use --format pt2"):
        run(run_dir, "-o", tmp_path / "model")


def test_a_run_that_was_shown_beside_another_has_its_own_metrics(tmp_path: Path) -> None:
    trained = TrainedRun(Path("best.pt"), 7, 100, "likelihood", {}, (), SourceConfig(), 0.0, "{}")
    own = {"checkpoint": "b.pt", "model": "likelihood", "step": 7, "config_digest": trained.config_digest}

    def read(report: dict[str, Any]) -> dict[str, Any] | None:
        (tmp_path / "report.json").write_text(json.dumps(report))
        return read_report(tmp_path / "report.json", trained, must_exist=True)

    of_first, of_own = ({"metrics": {"x": {"value": value, "error": None, "floor": 0.1}}} for value in (0.5, 0.2))
    wgan = {"checkpoint": "a.pt", "model": "wgan", "step": 7, "config_digest": "0" * 16, "notes": ["of the wgan"]}
    both = {"events": 5000, "seed": 0}
    report: dict[str, Any] = {**wgan, **both, **of_first, "muons_generated": 3}
    assert read(report | {"beside": {"provenance": own, **of_own}}) == {**own, **both, **of_own}
    for not_its_own in (
        report | {"beside": {"provenance": own | {"step": 9}, **of_own}},
        {**own, **of_first, "beside": {"provenance": own, **of_own}},
    ):
        assert read(not_its_own) == not_its_own
    with pytest.raises(BadInputError, match="it has no metrics"):
        read(report | {"beside": {"provenance": own}})
