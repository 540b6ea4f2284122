"""`icestream doctor`: each check, and the command on small files."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from muon_files import make_events, write_events
from run_dirs import made_run, session

from common.files.inputs import expand
from common.files.remotes import Remotes
from common.locks import RunLock
from icestream import version
from icestream.commands import doctor as module
from icestream.commands.doctor import Finding, doctor
from services.config.root import Config

ALONE = ("--set", "trainer.model=none")


@pytest.fixture(autouse=True)
def without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "commit_of", lambda root: "")


def config(**settings: Any) -> Config:
    return Config.model_validate(settings)


def only(findings: Any) -> Finding:
    (found,) = findings
    assert isinstance(found, Finding)
    return found


def diagnosed(*arguments: object) -> Result:
    return CliRunner().invoke(doctor, [str(argument) for argument in arguments], catch_exceptions=False)


def test_a_machine_and_files_that_will_do_give_exit_code_0(tmp_path: Path) -> None:
    write_events(tmp_path / "a.parquet", make_events([1, 2, 0]))
    result = diagnosed("-i", tmp_path / "a.parquet", "--run-dir", tmp_path / "run", *ALONE)
    assert result.exit_code == 0, result.output
    assert "inputs         1 file," in result.output
    assert "Parquet of muons, 3 events, 3 particles" in result.output
    assert "problem" not in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"], "nothing is left behind"


def test_all_mistakes_of_the_configuration_are_problems_of_one_answer(tmp_path: Path) -> None:
    arguments = ("--set", "strem.slots=3", "--set", "epochs=-1", "--set", "trainer.device=gpu")
    result = diagnosed("-i", tmp_path, "--run-dir", tmp_path / "run", *arguments)
    assert result.exit_code == 2
    problems = [line for line in result.output.splitlines() if line.startswith("problem  configuration")]
    assert [name for name in ("strem.slots", "epochs", "gpu") if not any(name in line for line in problems)] == []
    assert "memory" in result.output, "the machine is checked all the same"
    assert result.output.endswith("3 problems\n")


def test_a_bad_file_is_named_a_missing_one_is_a_problem_and_none_at_all_a_warning(tmp_path: Path) -> None:
    write_events(tmp_path / "a.parquet", make_events([1, 2]))
    (tmp_path / "b.parquet").write_text("nothing")
    result = diagnosed("-i", tmp_path, "--run-dir", tmp_path / "run", *ALONE)
    assert result.exit_code == 2
    (line,) = [line for line in result.output.splitlines() if line.startswith("problem")]
    assert "b.parquet: truncated, or neither Parquet nor HDF5" in line
    result = diagnosed("-i", tmp_path / "typo", "--run-dir", tmp_path / "run", *ALONE)
    assert "problem  inputs" in result.output
    assert result.exit_code == 2
    result = diagnosed("--run-dir", tmp_path / "run", *ALONE)
    assert "warning  inputs         none given" in result.output
    assert result.exit_code == 0


def test_of_many_local_files_some_spread_over_all_are_looked_at(tmp_path: Path) -> None:
    for index in range(100):
        (tmp_path / f"{index:03}.parquet").write_text("")
    with Remotes(config().remote_access()) as remotes:
        files = expand([str(tmp_path)], remotes)
    chosen = [Path(file.url).stem for file in module.spread(files)]
    assert chosen == [f"{index:03}" for index in range(0, 100, 5)]
    assert module.spread(files[:3]) == files[:3]


def test_a_token_that_is_missing_is_a_warning_that_names_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BEARER_TOKEN", "BEARER_TOKEN_FILE", "_CONDOR_CREDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    absent = config(input=["pelican://a.org/icecube/x.parquet"], token={"file": str(tmp_path / "typo")})
    found = only(module.check_tokens(absent))
    assert (found.level, found.name) == ("problem", "token")
    assert "no such file" in found.text
    assert not list(module.check_tokens(config(input=["data/*.parquet"])))


def test_cores_memory_and_open_files_that_do_not_suffice_are_told() -> None:
    four, five = config(local={"decoders": 4}), config(local={"decoders": 5})
    assert [module.check_cores(one, 4).level for one in (four, five)] == ["ok", "warning"]
    small = config(stream={"slots": 8, "slot_mib": 8.0})
    memory = [module.check_memory(small, available << 20).level for available in (63, 100, 4096)]
    assert memory == ["problem", "warning", "ok"]
    many = config(local={"decoders": 300})
    found = module.check_open_files(many, 1024)
    assert found.level == "problem"
    assert "ulimit -n 1332" in found.text
    assert module.check_open_files(many, 4096).level == "ok"
    assert module.check_open_files(many, resource.RLIM_INFINITY).text == "no limit"


def test_a_run_directory_in_use_not_writable_or_without_locks_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_run(tmp_path, session())
    assert module.check_folder(tmp_path / "not/there/yet").level == "ok"
    with RunLock(tmp_path, "run", "icestream run"):
        found = module.check_folder(tmp_path)
    assert found.level == "problem"
    assert "is in use by" in found.text
    for number, words in ((errno.ENOLCK, "has no locks"), (errno.EROFS, "can't be written")):

        def refuse(path: Path, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(module, "try_lock", refuse)
        found = module.check_folder(tmp_path)
        assert found.level == "problem"
        assert words in found.text


def test_the_cache_of_remote_files_needs_its_budget_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=10 << 30))
    remote = {"input": ["https://a.org/x.parquet"]}
    levels = [
        only(module.check_cache(config(**remote, fetcher={"disk_budget_gib": gib}), tmp_path)).level for gib in (5, 20)
    ]
    assert levels == ["ok", "warning"]
    assert not list(module.check_cache(config(input=["x.parquet"]), tmp_path))


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_gpu_that_torch_can_not_use_is_a_warning_and_one_that_is_asked_for_in_vain_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Finding("ok", "GPU 0", "H200")
    monkeypatch.setattr(module, "_gpus", lambda: iter([gpu]))
    seen, device = module.check_device(config())
    assert seen == gpu
    assert (device.level, device.text[:27]) == ("warning", "cpu, although there is a GP")
    _, device = module.check_device(config(trainer={"device": "cuda"}))
    assert device.level == "problem"
    assert "trainer.device = 'cuda': there is no CUDA device here" in device.text
    assert not list(module.check_device(config(trainer={"model": "none"})))
