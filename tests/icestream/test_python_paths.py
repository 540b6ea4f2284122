"""Paths of the Python API: each argument and option that is one takes a text, a Path and any os.PathLike."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from muon_files import make_events, write_events

import icestream
from common.python_paths import given_inputs
from workloads.base.evaluation.options import EvaluationOptions
from workloads.base.report.evaluation_report import EvaluationReport
from workloads.direction.evaluation.evaluate import DirectionOptions
from workloads.direction.trained_directions import TrainedDirections
from workloads.muons.evaluation.settings import EvaluationRequest

VERBS: list[Callable[..., Any]] = [
    *(icestream.stream, icestream.simulate, icestream.load, icestream.evaluate),
    *(TrainedDirections.predict, EvaluationReport.write),
]
TESTED = {
    ("stream", "inputs"),
    ("stream", "run_dir"),
    ("stream", "config"),
    ("simulate", "path"),
    ("load", "run"),
    ("evaluate", "run"),
    ("evaluate", "inputs"),
    ("evaluate", "output"),
    ("predict", "files"),
    ("write", "folder"),
}
"""Arguments that are paths; each is given below."""
WORKLOADS: list[type[EvaluationOptions]] = [EvaluationRequest, DirectionOptions]
PATH_OPTIONS = {
    EvaluationRequest: {"checkpoint", "output", "thresholds", "toml", "beside"},
    DirectionOptions: {"checkpoint", "output", "thresholds", "toml"},
}


class Place:
    """Path of another library."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


FORMS: list[Callable[[Path], Any]] = [str, Path, Place]


def test_this_file_knows_every_argument_that_is_a_path() -> None:
    found = {
        (verb.__name__, name)
        for verb in VERBS
        for name, one in inspect.signature(verb).parameters.items()
        if any(word in str(one.annotation) for word in ("Path", "PathLike"))
    }
    assert found == TESTED
    for options in WORKLOADS:
        hints = get_type_hints(options).items()
        assert {name for name, kind in hints if "Path" in str(kind)} == PATH_OPTIONS[options]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", WORKLOADS)
def test_each_path_among_the_options_of_an_evaluation_takes_any_form(
    options: type[EvaluationOptions], form: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {name: form(Path(f"{name}.x")) for name in PATH_OPTIONS[options]}
    found = options.given(inputs=("files",), **given)
    assert {name: getattr(found, name) for name in given} == {name: tmp_path / f"{name}.x" for name in given}
    assert options.given(checkpoint=form(Path("~/x")), inputs=("files",)).checkpoint == Path.home() / "x"
    assert options.given(checkpoint="x", inputs=("files",), thresholds=None).thresholds is None


def test_an_option_of_an_evaluation_that_is_no_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(icestream.BadInputError, match="beside = 3: expected a path"):
        EvaluationRequest.given(checkpoint=tmp_path, inputs=("files",), beside=3)


@pytest.mark.parametrize("form", FORMS)
def test_each_argument_that_is_a_path_takes_any_form(form: Callable[[Path], Any], tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: icestream.stream("x", run_dir=3), "run_dir"),  # type: ignore[arg-type]
        (lambda: icestream.stream("x", config=3), "config"),  # type: ignore[arg-type]
        (lambda: icestream.simulate(3), "path"),  # type: ignore[arg-type]
        (lambda: icestream.load(3), "run"),  # type: ignore[arg-type]
        (lambda: icestream.evaluate(3), "run"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_that_is_no_path_is_named(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(icestream.BadInputError, match=f"^{name} = 3: expected a path$"):
        call()
