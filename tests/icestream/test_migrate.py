"""`icestream migrate`: each old flag and key has a counterpart or a reason, and its value arrives."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from common.errors import BadInputError
from common.plan import SlotCapacity
from icestream.cli import cli
from icestream.commands.migrate import ALL_FLAGS, FLAGS, SCRIPTS, Moved, moved, script, toml
from services.config.root import Config, known_keys, load_config
from workloads.direction.models.config import TransformerConfig

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
        assert flag.option or flag.keys or flag.note or flag.alias_of in {one.name for one in FLAGS}, flag.name
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
    assert any("its first 1,500 steps train the likelihood model" in note for note in new.notes)
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
        ("--tb-hist-interval 10", "trainer.validation.every", 100),
        ("--tb-hist-interval 300", "trainer.validation.every", 300),
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
    assert any("at least 100" in note for note in of(*old.split()).notes) == (old == "--tb-hist-interval 10")


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
        ("tarin", "no flag of train.py: tarin"),
        ("train.py", "no flag of train.py given"),
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


# ------------------------------------------------------------------ other scripts of cr_muons


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "batch_infer.py --input a --output b --counts-mode constant --count-constant 4 --denormalize",
            "icestream generate runs/migrated a -o b --counts constant:4",
            "--denormalize: muons are always in GeV and metres",
        ),
        (
            "batch_infer.py --input a --output b --counts-mode column --counts-column n --count-constant 4",
            "icestream generate runs/migrated a -o b --counts column --counts-column n",
            "--count-constant: only with --counts-mode constant, as before",
        ),
        (
            "utils/merge_tensorboard_runs.py --dst tb --src-root logs --mode symlink --since 20260105",
            "icestream tensorboard logs",
            "--dst: nothing is copied or linked: runs are read where they are",
        ),
        (
            "get_pelican_token.py --source-path /icecube/x --target-path /icecube/y --federation pelican://f.org/",
            "icestream token -i pelican://f.org/icecube/x --output pelican://f.org/icecube/y",
            "--federation: part of the URL",
        ),
        ("convert_to_parquet.py 'a b.h5' b.parquet", "icestream convert 'a b.h5' b.parquet", ""),
    ],
)
def test_each_script_has_its_command(old: str, new: str, said: str) -> None:
    lines = script(of("python", *shlex.split(old)))
    assert lines[0] == new
    assert not said or f"#   {said}" in lines


def test_each_script_of_the_table_is_read_or_told_what_takes_its_place() -> None:
    told = r"no flag of [a-z_]*.py: --no-such|can't be read|: needs|: in Python|required: input"
    for name in SCRIPTS:
        with pytest.raises(BadInputError, match=told):
            of(name, "--no-such-flag")


LAUNCHER = """#!/bin/bash
RANGE_START=0      # first
RANGE_END=99000
RANGE_STEP="1000"
RANGES_TO_PROCESS=2
LOGS="./logs"
if true; then
    RANGE_END=$(( RANGE_START + 1 ))
fi
    TRAIN_CMD=(
        stdbuf -oL python -u training/train.py \\
        -i "pelican://osg-htc.org/x/${RANGE_DIR}/*.parquet" \\
        # don't
        --batch-size 4096 --tb-logdir $LOGS --auto-token
    )
"""


def test_the_launcher_becomes_one_run_of_all_its_ranges(tmp_path: Path) -> None:
    path = tmp_path / "train_with_restart.sh"
    path.write_text(LAUNCHER)
    new = of("bash", str(path))
    assert new.inputs == ("pelican://osg-htc.org/x/{range}/*.parquet",)
    assert new.settings == {"stream.batch_events": 4096, "fetcher.ranges": "0:99000:1000"}
    assert config_of(tmp_path, new).fetcher.ranges == "0:99000:1000"
    assert any("RANGES_TO_PROCESS" in note for note in new.notes)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("TRAIN_CMD", "OTHER", "it has no TRAIN_CMD"),
        ("$LOGS", "$ELSEWHERE", "no value of $ELSEWHERE"),
        ("# don't", "'", "TRAIN_CMD can't be read (No closing quotation)"),
        ("RANGE_END=99000", "RANGE_END=x", "fetcher.ranges"),
    ],
)
def test_a_launcher_that_can_not_be_read_is_told(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "train_with_restart.sh"
    path.write_text(LAUNCHER.replace(old, new))
    with pytest.raises(BadInputError, match=re.escape(said)):
        of(str(path))


# ------------------------------------------------------------------ iceaggr

YAML = """
model: {version: v2, max_pulses_per_dom: 16, d_model: 256, num_heads: 8, num_layers: 6, hidden_dim: 1024}
training:
  {epochs: 2, batch_size: 4096, lr: 3e-4, warmup_steps: 2000, weight_decay: 0.01, gradient_clip: 1.0, use_amp: true}
data:
  max_events: 200000000
  val_events: 1000000
  geometry_path: "/data/my kaggle/sensor_geometry.csv"
  train_batches: [1, 650]
  val_batches: [651, 655]
  val_per_epoch: 5
  new_key: [1, 2]
wandb: {enabled: true, project: iceaggr, name: null, tags: [a]}
checkpoint: {dir: checkpoints, save_every: 5, resume: null}
"""


def iceaggr(tmp_path: Path, text: str, *flags: str) -> Moved:
    path = tmp_path / "train_flat.yaml"
    path.write_text(text)
    return of("python", "scripts/train_flat.py", "--config", str(path), *flags) if flags else of(str(path))


def test_a_configuration_of_iceaggr_becomes_settings_that_load_and_hold_its_values(tmp_path: Path) -> None:
    new = iceaggr(tmp_path, YAML)
    config = config_of(tmp_path, new)
    section = TransformerConfig.model_validate(config.trainer.of_model, from_attributes=True)
    assert (config.workload, config.trainer.model, section.size) == ("direction", "flat", "5m")
    assert (section.learning_rate, section.warmup_steps, section.schedule_steps) == (3e-4, 2000, 2 * 31738)
    assert (config.stream.batch_events, config.epochs, config.trainer.precision) == (4096, 2, "bf16")
    assert config.trainer.validation.input == tuple(f"ev/batch_{number}.parquet" for number in range(651, 656))
    assert (config.trainer.validation.events, config.trainer.validation.every) == (50_000, 31738 // 5)
    assert (config.trainer.wandb.mode, config.trainer.wandb.project) == ("online", "iceaggr")
    assert config.trainer.checkpoint_every == 1000
    assert new.inputs == ("ev/batch_{1..650}.parquet",)
    lines = script(new)
    assert "icestream convert '/data/my kaggle' ev &&" in lines
    assert "icestream run -i 'ev/batch_{1..650}.parquet' -c migrated.toml --run-dir runs/train_flat" in lines
    assert "data.new_key: no counterpart is known" in new.left_out
    named = {line.partition(":")[0] for line in new.left_out}
    named |= {origin.split(",")[0] for origin in new.origins.values()}
    assert {"training.weight_decay", "training.gradient_clip", "checkpoint.dir", "wandb.tags"} <= named


def test_flags_of_train_flat_win_and_without_files_of_its_own_the_validation_is_held_out(tmp_path: Path) -> None:
    text = (
        YAML.replace("train_batches: [1, 650]", "").replace("val_batches: [651, 655]", "").replace("1000000", "50000")
    )
    new = iceaggr(tmp_path, text, "--lr", "1e-3", "--max-events", "10000000", "--no-wandb", "--name", "a/b")
    assert new.settings["trainer.transformer.learning_rate"] == 1e-3
    assert (new.inputs, new.settings["stream.held_out"]) == (("ev/batch_{1..50}.parquet",), 0.005)
    assert (new.settings["trainer.wandb.mode"], new.run_dir) == ("off", "runs/a_b")
    hierarchical = iceaggr(tmp_path, re.sub("model: .*", "model: {embed_dim: 128, event_num_layers: 6}", YAML)).settings
    assert (hierarchical["trainer.model"], hierarchical["trainer.transformer.size"]) == ("transformer", "1.6m")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lr: 3e-4", "lr: fast", "training.lr: Input should be a valid number"),
        ("[1, 650]", "[1]", "data.train_batches: "),
        ("d_model: 256", "d_model: wide", "model: expected d_model and num_layers"),
        ("training:", "trainings:", "no configuration of iceaggr"),
        ("training:", "{", "not YAML"),
        ("[651, 655]", "[655, 651]", "expected {FIRST..LAST}, rising"),
        ("lr: 3e-4", "lr: !!python/object/apply:os.system [ls]", "not YAML"),
        (YAML, "[" * 5000, "not YAML"),
        (YAML, "- a", "expected sections"),
        ("", "", "reading YAML needs PyYAML: pip install pyyaml"),
    ],
)
def test_a_configuration_that_can_not_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str
) -> None:
    if "pip" in said:
        monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(BadInputError, match=re.escape(said)):
        iceaggr(tmp_path, YAML.replace(old, new))
