"""Workloads are found by their folders."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from muon_files import make_events, make_table

import workloads
from common.errors import BadInputError
from icestream.cli import cli
from icestream.run_config import load_run_config, workload_of_files
from services.config.root import Config
from services.config.settings import model_sections
from workloads import registry

WORKLOAD = """
from common.config import ConfigBranch
from common.schema import Column, EventSchema, SourceColumn
from workloads.base.interface import Model, Workload

WORKLOAD = Workload(
    name="sparks",
    schema=EventSchema(
        name="sparks",
        columns=(Column("sparks", "particle", "<f4", ("t_s",)), Column("truth", "event", "<f4", ("y",))),
        source_columns=(SourceColumn("truth", "truth"), SourceColumn("sparks.t_s", "sparks", 0)),
        rules=(),
    ),
    models={"spark": Model("a test's", ConfigBranch, lambda: None)},
)
"""
VERBS = """
import click
from workloads.base.interface import Verb

VERBS = {name: Verb(lambda name=name: globals()[name], f"Do {name}.") for name in ("simulate", "ignite")}


@click.command()
@click.argument("out")
def simulate(out):
    click.echo(f"sparks in {out}")


@click.command()
def ignite():
    click.echo("ignited")
"""


def forget() -> None:
    for function in (registry.names, registry.workload, registry.verbs):
        function.cache_clear()


@pytest.fixture
def sparks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second workload, in a folder outside of the repository."""
    folder = tmp_path / "workloads" / "sparks"
    folder.mkdir(parents=True)
    (folder / "workload.py").write_text(WORKLOAD)
    (folder / "verbs.py").write_text(VERBS)
    monkeypatch.setattr(workloads, "__path__", [*workloads.__path__, str(folder.parent)])
    forget()
    yield
    forget()


def test_muons_are_the_default_and_have_both_models_and_four_verbs() -> None:
    assert registry.names()[0] == registry.DEFAULT == "muons"
    assert list(registry.workload("muons").models) == ["wgan", "likelihood"]
    assert registry.workload("muons").default_model == "wgan"
    assert set(registry.verbs("muons")) == {"simulate", "evaluate", "generate", "export"}


def test_every_verb_of_every_workload_can_be_imported_and_has_an_example() -> None:
    for name in registry.names():
        for verb in registry.verbs(name):
            shown = CliRunner().invoke(cli, [verb, "--workload", name, "--help"])
            assert shown.exit_code == 0, shown.output
            assert "Example" in shown.output


def test_a_folder_is_a_workload_with_its_verbs(sparks: None) -> None:
    assert registry.names() == ("muons", "direction", "sparks")
    shown = CliRunner().invoke(cli, ["--help"]).output
    assert re.search(r"ignite +Do ignite \(sparks\)\.", shown)
    assert CliRunner().invoke(cli, ["ignite"]).output == "ignited\n"


def test_a_verb_that_two_workloads_have_is_chosen_by_name_and_else_the_defaults(sparks: None) -> None:
    for named in (["--workload", "sparks"], ["--workload=sparks"]):
        assert CliRunner().invoke(cli, ["simulate", "here", *named]).output == "sparks in here\n"
    assert "--preset" in CliRunner().invoke(cli, ["simulate", "--help"]).output


def test_the_help_of_a_verb_names_the_other_workloads_that_have_it(sparks: None) -> None:
    shown = " ".join(CliRunner().invoke(cli, ["simulate", "--help"]).output.split())
    assert "With other options for the workload sparks: icestream simulate --workload sparks --help" in shown
    assert "for the workload muons:" not in shown
    other = " ".join(CliRunner().invoke(cli, ["simulate", "--workload", "sparks", "--help"]).output.split())
    assert "for the workload muons: icestream simulate --workload muons --help" in other


def test_files_that_a_run_can_not_read_but_convert_can_import_say_so(tmp_path: Path) -> None:
    folder = write(tmp_path / "train" / "batch_1.parquet", PULSES).parent
    write(tmp_path / "train_meta.parquet", pa.table({"batch_id": [1]}))
    for inputs in (tmp_path, folder, folder / "batch_1.parquet", folder / "*.parquet"):
        with pytest.raises(BadInputError, match=r"of the layout kaggle.*import it with `icestream convert"):
            workload_of(tmp_path, inputs)


def test_a_verb_that_a_workload_has_not_names_those_that_have_it(sparks: None) -> None:
    done = CliRunner().invoke(cli, ["export", "--workload", "sparks"])
    assert done.exit_code == 2
    assert "'sparks' has no export; those that have: muons" in done.output


def test_a_workload_and_a_model_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="one of muons"):
        Config.model_validate({"workload": "pions"})
    with pytest.raises(ValueError, match="one of wgan, likelihood"):
        Config.model_validate({"trainer": {"model": "diffusion"}})


def write(path: Path, table: pa.Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


SPARKS = pa.table(
    {"truth": [[1.0]], "sparks": [[{"t_s": 2.0}]], "extra": [1]},
    pa.schema(
        {"truth": pa.list_(pa.float32()), "sparks": pa.list_(pa.struct({"t_s": pa.float32()})), "extra": pa.int64()}
    ),
)


PULSES = pa.table({"event_id": [1], "sensor_id": [2], "time": [3], "charge": [1.0], "auxiliary": [True]})


def workload_of(tmp_path: Path, *inputs: object, assignments: tuple[str, ...] = ()) -> str:
    flags = {"input": tuple(map(str, inputs))}
    return load_run_config(tmp_path / "run", toml=None, assignments=assignments, flags=flags).workload


def test_the_files_columns_show_the_workload(sparks: None, tmp_path: Path) -> None:
    inside = write(tmp_path / "in" / "deep" / "a.parquet", SPARKS)
    muons = write(tmp_path / "muons.parquet", make_table(make_events([1, 2])))
    for text in (inside, tmp_path / "in", tmp_path / "in/*/*.parquet", f"file://{inside}", tmp_path / "in/{range}"):
        assert workload_of_files([str(text)]) == "sparks"
    assert workload_of_files([str(muons)]) == "muons"
    assert workload_of_files(["pelican://osg-htc.org/a", str(inside)]) == "sparks"


def test_files_that_show_no_workload_are_taken_for_the_defaults(sparks: None, tmp_path: Path) -> None:
    other = write(tmp_path / "other.parquet", pa.table({"x": [1]}))
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(b"PAR1 nothing PAR1")
    for text in (other, torn, tmp_path / "missing.parquet", "pelican://osg-htc.org/a", "@list"):
        assert workload_of_files([str(text)]) is None
        assert workload_of(tmp_path, text) == "muons"


def test_files_of_another_workload_than_the_one_that_is_named_are_refused(sparks: None, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="workload = 'pions': expected one of muons"):
        workload_of(tmp_path, assignments=("workload=pions",))
    inside = write(tmp_path / "a.parquet", SPARKS)
    with pytest.raises(BadInputError, match="has the columns of the workload sparks, but this run is of the workload"):
        workload_of(tmp_path, inside, assignments=("workload=muons",))


BROKEN = {
    "raise RuntimeError('broken')": r"sparks.*RuntimeError: broken \(.*workload.py, line 1\)",
    "WORKLAOD = 1": "sparks.*has no attribute 'WORKLOAD'",
    WORKLOAD.replace('name="sparks"', 'name="spark"'): "its name is 'spark'; expected 'sparks'",
    WORKLOAD.replace('"<f4", ("t_s"', '"f", ("t_s"'): "column sparks has type f; expected one of",
}


@pytest.mark.parametrize("code", BROKEN)
def test_a_workload_that_can_not_be_imported_is_one_line(sparks: None, tmp_path: Path, code: str) -> None:
    (tmp_path / "workloads" / "sparks" / "workload.py").write_text(code)
    sys.modules.pop("workloads.sparks.workload", None)
    importlib.invalidate_caches()
    with pytest.raises(BadInputError, match=BROKEN[code]):
        registry.workload("sparks")
    sys.modules.pop("workloads.sparks.workload", None)


@pytest.mark.parametrize("name", ["wgan", "device"])
def test_a_model_whose_name_is_taken_is_refused(sparks: None, tmp_path: Path, name: str) -> None:
    (tmp_path / "workloads" / "sparks" / "workload.py").write_text(WORKLOAD.replace('"spark":', f'"{name}":'))
    sys.modules.pop("workloads.sparks.workload", None)
    importlib.invalidate_caches()
    with pytest.raises(BadInputError, match=f"workload sparks: trainer.{name} has another meaning already"):
        model_sections()
    sys.modules.pop("workloads.sparks.workload", None)


@pytest.mark.usefixtures("sparks")
def test_a_workload_that_others_can_change_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "workloads").chmod(0o777)
    with pytest.raises(BadInputError, match=r"the workload .*/sparks/workload\.py: .* \(mode 0777.*by every user"):
        registry.names()


def test_the_current_folder_gives_workloads_only_if_pythonpath_names_it_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workloads" / "theirs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as an empty entry of PYTHONPATH becomes
    own = [str(Path(workloads.__file__).parent)]
    monkeypatch.setenv("PYTHONPATH", f":{tmp_path / 'lib'}")
    assert str(tmp_path / "workloads") not in workloads._places(own)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert str(tmp_path / "workloads") in workloads._places(own)
