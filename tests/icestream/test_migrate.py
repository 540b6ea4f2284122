"""`icestream migrate`: each flag of cr_muons has a counterpart or a reason, and its value arrives."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from common.errors import BadInputError
from common.plan import SlotCapacity
from icestream.cli import cli
from icestream.commands.migrate import ALL_FLAGS, FLAGS, Moved, moved, script, toml
from services.config.root import Config, known_keys, load_config

OLD_DATA = Path(__file__).resolve().parents[1] / "data/cr_muons"

LAUNCH = shlex.split((OLD_DATA / "launch.txt").read_text())


def of(*arguments: str) -> Moved:
    return moved(arguments)


def config_of(tmp_path: Path, new: Moved) -> Config:
    path = tmp_path / "migrated.toml"
    path.write_text("\n".join(toml(new)))
    return load_config({}, toml=path, environment={})


def value_at(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_the_table_has_each_of_the_77_flags_of_the_old_script_once_and_no_other() -> None:
    old = (OLD_DATA / "flags.txt").read_text().split()
    assert len(old) == len(set(old)) == 77
    assert sorted(flag.name for flag in FLAGS[:77]) == old
    assert not {flag.name for flag in FLAGS[77:]} & set(old)


def test_each_flag_has_a_counterpart_that_exists_or_a_reason() -> None:
    keys = set(known_keys())
    branches = {key.partition(".")[0] for key in keys if "." in key}
    for flag in ALL_FLAGS:
        if flag.script == "train_flat.py":
            continue  # its keys are iceaggr's own
        assert flag.counterpart or flag.note or flag.alias_of in {one.name for one in FLAGS}, flag.name
        named = {name for name in re.findall(r"`(\w+\.[\w.]+)`", flag.note) if name.partition(".")[0] in branches}
        assert {*flag.keys, *named} <= keys, flag.name


def test_the_old_launch_line_becomes_settings_that_load_and_hold_its_values(tmp_path: Path) -> None:
    new = of(*LAUNCH)
    config = config_of(tmp_path, new)
    for key, value in new.settings.items():
        assert value_at(config, key) in (value, Path(str(value))), key
    assert (config.stream.batch_events, config.stream.max_particles) == (128_000, 300_000)
    assert (config.stream.max_particles_per_event, config.stream.block_files) == (50_000, 10)
    assert config.trainer.precision == "tf32"
    assert (config.local.decoders, config.local.max_decoders) == ("auto", 4)
    assert config.trainer.wgan.critic_steps == 5
    assert new.inputs == ("pelican://osg-htc.org/icecube/testing/0000000-0000999/*.parquet",)
    assert any("penalty_weight = 10 is strong" in note for note in new.notes)
    named = {line.partition(":")[0] for line in new.left_out} | set(new.origins.values())
    flags = {text for text in LAUNCH if text.startswith("--")}
    assert flags - named == {"--auto-token", "--checkpoint"}
    assert new.token
    assert new.done == "./training_checkpoint.json"


@pytest.mark.parametrize(
    ("old", "key", "value"),
    [
        ("--critic-step 4", "trainer.wgan.critic_steps", 4),
        ("--device rocm", "trainer.device", "cuda"),
        ("--torch-compile max-autotune", "trainer.wgan.compile", True),
        ("--torch-compile off", "trainer.wgan.compile", False),
        ("--report-first-batch", "trainer.audit", True),
        ("--shuffle-seed=7", "seed", 7),
        ("--tb-sync-int 30", "outputs.every_s", 30.0),
        ("--lr 5e-5 --optimizer adam", "trainer.wgan.critic_lr", 5e-5),
        ("--hidden-dim 256", "trainer.wgan.network.hidden", 256),
        ("--batch-size 8 --batch-size 16", "stream.batch_events", 16),
        ("--max-muons-per-event 2000000", "stream.max_particles", 2_000_000),
    ],
)
def test_values_in_the_old_form_arrive_in_the_new_one(tmp_path: Path, old: str, key: str, value: object) -> None:
    config = config_of(tmp_path, of(*old.split()))
    assert value_at(config, key) == value
    SlotCapacity(config.stored_workload(), config.stream)  # a slot holds the largest event


def test_a_rate_of_sgd_is_none_for_adam() -> None:
    sgd = of("--lr", "0.01", "--optimizer", "sgd", "--momentum", "0.5")
    assert sgd.settings == {}
    assert [line.split(":")[0] for line in sgd.left_out] == ["--lr", "--optimizer", "--momentum"]
    assert of("--lr", "0.01").settings["trainer.wgan.critic_lr"] == 0.01


def test_the_batch_of_a_process_is_multiplied_by_the_processes_and_nodes_are_carried_over() -> None:
    old = ("torchrun", "--nnodes", "2", "--nproc_per_node", "4", "train.py", "--batch-size", "1024")
    moved_on = of(*old)
    assert moved_on.settings["stream.batch_events"] == 8 * 1024
    assert moved_on.origins["stream.batch_events"] == "--batch-size 1024 × 8 processes"
    assert any("--nnodes 2: " in note and "icestream run --shared" in note for note in moved_on.notes)
    with pytest.raises(BadInputError, match="--nnodes 1:4: expected the number"):
        of("torchrun", "--nnodes=1:4", "train.py", "--batch-size", "1024")


def test_unknown_flags_are_named_together_with_the_nearest_known_ones() -> None:
    with pytest.raises(BadInputError) as raised:
        of("train.py", "--batch-sise", "4", "--lr", "1", "--zzz=1")
    assert "--batch-sise (the nearest is --batch-size); --zzz" in str(raised.value)


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("--batch-size", "--batch-size: expected one argument"),
        ("--batch-size many", "--batch-size: invalid int value"),
        ("--optimizer lion", "choose from"),
        ("--use-hf=1", "--use-hf: ignored explicit argument"),
        ("--batch-size -4", "stream.batch_events, from the old flags"),
        ("tarin", "no flag of the old script: tarin"),
        ("train.py", "no flag given"),
    ],
)
def test_an_old_command_that_never_worked_is_refused_with_the_flag(old: str, said: str) -> None:
    with pytest.raises(BadInputError, match=re.escape(said)):
        of(*old.split())


@pytest.mark.parametrize(
    ("inputs", "gets_one"),
    [
        (("https://example.org/a.parquet", "data"), False),
        ((), False),
        (("data", "pelican://osg-htc.org/icecube/a.parquet"), True),
        (("osdf:///icecube/a.parquet",), True),
    ],
)
def test_the_script_gets_a_token_only_for_inputs_in_a_federation(inputs: tuple[str, ...], gets_one: bool) -> None:
    new = of("train.py", "--auto-token", "--lr", "1e-4", *(["-i", *inputs] if inputs else []))
    lines = script(new)
    assert any(line.startswith("icestream token") for line in lines) == gets_one
    assert ("--auto-token: no input is in a federation" in "\n".join(lines)) == (not gets_one)


def test_a_token_is_never_printed_and_an_old_preview_becomes_an_inspection() -> None:
    assert script(of("-i", "a b.parquet", "--print-file-contents")) == ["icestream inspect 'a b.parquet' --events 5"]
    result = CliRunner().invoke(cli, ["migrate", "--", "train.py", "--token", "s3cr3t", "-i", "a"])
    assert result.exit_code == 0, result.output
    assert "s3cr3t" not in result.output
    assert "--token-file" in result.output


def test_the_old_list_of_files_is_given_to_the_run_if_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    old = ["migrate", "--", "train.py", "-i", "a", "--checkpoint", "training_checkpoint.json"]
    assert "training_checkpoint.json is not there; --done" in CliRunner().invoke(cli, old).output
    Path("training_checkpoint.json").touch()
    assert "icestream run -i a --done training_checkpoint.json" in CliRunner().invoke(cli, old).output


@pytest.mark.process
def test_the_output_pasted_into_a_shell_writes_the_settings_and_starts_the_run_with_the_inputs(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "icestream"
    command.write_text('#!/bin/sh\nfor one in "$@"; do echo "[$one]"; done\n')
    command.chmod(0o700)
    old = ["migrate", "--", "train.py", "-i", "my data/*.parquet", "it's"]
    old += ["--tb-run-name", "a $(b)", "--prefetch-dir", "END\n'"]
    output = CliRunner().invoke(cli, old, catch_exceptions=False).output
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e"], input=output, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    arguments = ["run", "-i", "my data/*.parquet", "-i", "it's", "-c", "migrated.toml", "--run-dir", "runs/a $(b)"]
    assert done.stdout.splitlines() == [f"[{one}]" for one in arguments]
    assert tomllib.loads((tmp_path / "migrated.toml").read_text()) == {"fetcher": {"cache_dir": "END\n'"}}
