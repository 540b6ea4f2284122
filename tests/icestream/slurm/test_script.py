"""Job script for Slurm: what it is made of, its quoting, and its verdict on the codes of the nodes."""

from __future__ import annotations

import re
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from common.errors import BadInputError
from icestream.cli import cli
from icestream.commands.slurm import command
from icestream.commands.slurm.script import SlurmJob

TEMPLATE = Path(command.__file__).with_name("job.sbatch").read_text()
HOSTILE = [
    "a b",
    "$(touch owned)",
    "`touch owned`",
    "';touch owned;'",
    'x"y\\',
    "*",
    "two\nlines",
    "#no comment",
    "é",
    "",
]


def job(**fields: Any) -> SlurmJob:
    plain: dict[str, Any] = {
        "name": "muons",
        "nodes": 2,
        "possible": (1, 2, 4),
        "gpus": 0,
        "time": "24:00:00",
        "shared": Path("/shared"),
        "run_dir": Path("/local"),
        "program": ("icestream",),
        "options": (),
    }
    return SlurmJob(**plain | fields)


def bash(script: str, folder: Path) -> str:
    """Output of a script that bash must run to its end."""
    done = subprocess.run(["bash", "-uc", script], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_slurm(script: str, number: int, functions: str, folder: Path) -> str:
    """Output of the script as job ``number``, with bash functions as Slurm's commands; it ends with the exit code."""
    slurm = """
        trap 'echo "exit code $?"; exit 0' EXIT
        scontrol() { [ "$2" = node ] && echo "NodeName=a NodeAddr=127.0.0.1 Port=1" || echo a; }
        srun() { echo "$@"; }
        SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=a
    """
    return bash(f"{slurm}\nSLURM_JOB_ID={number}\n{functions}\n{script}", folder)


def assignment(script: str, name: str) -> str:
    """Assignment of a variable, up to the next comment at the start of a line."""
    found = re.search(rf"^{name}=.*?(?=\n#)", script, re.M | re.S)
    assert found is not None
    return found[0]


def test_every_field_of_the_template_is_filled() -> None:
    script = job(gpus=8).script(TEMPLATE)
    assert "{{" not in script
    assert "#SBATCH --nodes=2\n" in script
    assert "#SBATCH --gpus-per-node=8\n" in script
    assert "--gpus-per-node" not in job().script(TEMPLATE)


@pytest.mark.process
def test_folders_that_the_script_makes_are_the_owners_alone(tmp_path: Path) -> None:
    """The shared folder may be new: the job makes it before any icestream runs."""
    script = job(shared=tmp_path / "shared").script(TEMPLATE)
    until_made = script.partition("    # Port of the first machine")[0] + "break; done"
    quiet = "scontrol() { echo a; }; export SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=a; umask 002\n"
    bash(quiet + until_made, tmp_path)
    for path in (tmp_path / "shared", tmp_path / "shared" / ".slurm-7"):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.process
def test_a_port_on_which_somebody_listens_is_not_taken(tmp_path: Path) -> None:
    """A node that finds its port in use ends with 2, a user's mistake, which ends the job."""
    script = job(shared=tmp_path / "shared").script(TEMPLATE).replace("STARTS=5", "STARTS=1")
    for number in range(100):
        port = 20_000 + number * 31 % 10_000
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            output = without_slurm(script, number, "", tmp_path)
            break
    (taken,) = re.findall(r"--master 127\.0\.0\.1:(\d+) ", output)
    assert port < int(taken) < port + 100


@pytest.mark.process
def test_nothing_starts_after_a_signal_in_the_pause_between_two_starts(tmp_path: Path) -> None:
    script = job(shared=tmp_path / "shared").script(TEMPLATE)
    output = without_slurm(script, 1, "sleep() { kill -TERM $$; }", tmp_path)
    assert "start 1," in output
    assert "start 2," not in output
    assert output.endswith("exit code 130\n")


@pytest.mark.process
def test_the_script_is_bash(tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text(job(options=HOSTILE).script(TEMPLATE))
    bash(f"bash -n '{script}'", tmp_path)


@pytest.mark.process
def test_texts_of_the_user_come_to_the_nodes_as_they_are(tmp_path: Path) -> None:
    shared = Path("/it's/$(touch owned) shared")
    script = job(options=HOSTILE, shared=shared).script(TEMPLATE)
    # The last option may be anything: so no comment of the template is searched for, but its next variable.
    options = script[script.index("OPTIONS=(") : script.index("\n\n# Starts in a row")]
    output = bash(f'{options}\n{assignment(script, "SHARED")}\nprintf "%s\\0" "${{OPTIONS[@]}}" "$SHARED"', tmp_path)
    assert output.split("\0")[:-1] == [*HOSTILE, str(shared)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "a\n#SBATCH --uid=0"},
        {"name": "-x"},
        {"time": "1:00\n#SBATCH --uid=0"},
        {"time": "soon"},
        {"options": ("-i", "https://me:hunter2@host.example/x")},
        {"options": ("--set", "fetcher.token=eyJhbGciOi.eyJzdWIi.c2ln")},
        {"options": ("a\0b",)},
    ],
)
def test_what_a_script_cannot_hold_or_must_not_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInputError) as error:
        job(**fields).script(TEMPLATE)
    assert "hunter2" not in str(error.value)


@pytest.mark.process
@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        (("0", "0"), "0"),
        (("75", "137"), "75"),
        (("137", "75"), "75"),
        (("0", "75"), "75"),
        (("1", "137"), "1"),
        (("1", "2"), "2"),
        (("2", "75"), "2"),
        (("127", "75"), "2"),
        (("0", None), "75"),
        (("", "0"), "75"),
        (("130", "130"), "75"),
    ],
)
def test_the_verdict_is_that_of_all_nodes(codes: tuple[str | None, ...], verdict: str, tmp_path: Path) -> None:
    for node, code in enumerate(codes):
        if code is not None:
            (tmp_path / str(node)).write_text(code)
    function = TEMPLATE[TEMPLATE.index("verdict() {") : TEMPLATE.index("\nstart=0")]
    assert bash(f"codes={tmp_path} nodes={len(codes)}\n{function}\nverdict", tmp_path).strip() == verdict


def test_the_command_prints_a_script_for_the_shards_of_the_configuration(tmp_path: Path) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text("[stream]\nshards = 8\n")
    words = ["slurm", "--nodes", "4", "--shared", str(tmp_path / "shared"), "--run-dir", "/local", "-c", str(toml)]
    done = CliRunner().invoke(cli, [*words, "-i", "/data/*.parquet", "--decoders", "3"])
    assert done.exit_code == 0, done.output
    assert "\nPOSSIBLE=(1 2 4 8)\n" in done.output
    assert "4 nodes; with fewer machines: 2, 1" in done.stderr
    assert "-i '/data/*.parquet' --decoders 3" in done.output
    assert f"-c {toml}" in done.output


@pytest.mark.parametrize("engine", [["slurm"], ["ray", "--address", "127.0.0.1:1"]])
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--fresh"], "No such option '--fresh'"),
        (["--epoch", "3"], "No such option '--epoch'"),
        (["--master", "a:1"], "No such option '--master'"),
        (["--trainers", "many"], "Invalid value for '--trainers'"),
        (["-i", "a.parquet", "b.parquet"], "Got unexpected extra argument (b.parquet)"),
    ],
)
def test_an_option_that_no_node_knows_is_a_mistake(
    engine: list[str], words: list[str], error: str, tmp_path: Path
) -> None:
    done = CliRunner().invoke(cli, [*engine, "--nodes", "1", "--shared", str(tmp_path), "--run-dir", "/local", *words])
    assert done.exit_code == 2
    assert error in done.stderr
    assert f"Usage: cli {engine[0]} " in done.stderr


@pytest.mark.parametrize("engine", [["slurm"], ["ray", "--address", "127.0.0.1:1"]])
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["--nodes", "2", "--trainers", "3", "--set", "stream.shards=4"],
            "6 trainers can't share stream.shards = 4 evenly.*possible numbers of nodes with --trainers 3: 4$",
        ),
        (["--nodes", "3", "--set", "stream.shards=8"], "--nodes 3: stream.shards = 8 must be a multiple of it"),
    ],
)
def test_nodes_that_can_not_share_the_shards_are_a_mistake(
    engine: list[str], words: list[str], error: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInputError, match=error):
        CliRunner().invoke(
            cli, [*engine, "--shared", str(tmp_path), "--run-dir", "/local", *words], catch_exceptions=False
        )
