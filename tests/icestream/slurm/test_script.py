"""Job script of `icestream slurm`: what it is made of, its quoting, its ends, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from common.errors import BadInputError
from icestream.cli import cli
from icestream.commands.slurm import script

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


def job(**fields: Any) -> str:
    plain: dict[str, Any] = {"name": "muons", "nodes": "1-4", "fewest": 1, "gpus": 0, "trainers": 2, "time": "24:00:00"}
    folders = {"shared": Path("/shared"), "run_dir": Path("/local")}
    return script(**plain | folders | {"options": ()} | fields)


def print_script(*words: str, shared: Path, nodes: str = "4") -> Any:
    command = ["slurm", "--nodes", nodes, "--shared", str(shared), "--run-dir", "/local", *words]
    return CliRunner().invoke(cli, command)


def run_as_job(text: str, folder: Path, srun: str) -> tuple[int, str]:
    """Exit code and output of a script, with bash functions as Slurm's commands; ``srun`` is the code of one."""
    slurm = f"""
        srun() {{ {srun}; }}
        scancel() {{ echo "scancel $*"; touch '{folder}/stop'; }}
        scontrol() {{ echo "scontrol $*"; }}
        exec() {{ "$@"; exit; }}
        SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2
    """
    done = subprocess.run(["bash", "-uc", slurm + text], cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_every_field_is_filled_in_forty_short_lines() -> None:
    text = job(gpus=8, trainers=8)
    assert "{{" not in text
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 120 + len(sys.executable)
    assert "#SBATCH --nodes=1-4 --exclusive --mem=0 --gpus-per-node=8\n" in text
    assert '--nnodes=1:"$SLURM_JOB_NUM_NODES" --nproc-per-node=8 ' in text
    assert "--gpus-per-node" not in job()


@pytest.mark.process
def test_texts_of_the_user_come_to_icestream_as_they_are(tmp_path: Path) -> None:
    shared = tmp_path / "it's $(touch owned) shared"
    text = job(options=HOSTILE, shared=shared, run_dir=Path("/a b"))
    code, _ = run_as_job(text, tmp_path, 'printf "%s\\0" "$@" > "$SHARED/words"')
    assert code == 0
    words = (shared / "words").read_text().split("\0")[:-1]
    given = words[words.index("icestream") :]
    assert given == ["icestream", "run", "--shared", str(shared), "--run-dir", "/a b", *HOSTILE]
    assert list(tmp_path.iterdir()) == [shared]
    assert shared.stat().st_mode & 0o077 == 0, "made before any icestream runs"


@pytest.mark.process
@pytest.mark.parametrize(
    ("srun", "exit_code", "is_requeued"),
    [
        ("exit 0", 0, False),
        ("exit 1", 1, False),
        ("touch $meeting.finished; exit 137", 0, False),  # one torchrun was killed, the others have finished
        ("kill -USR1 $$; until [ -e stop ]; do sleep 0.01; done; exit 1", 0, True),
        ("kill -USR1 $$; until [ -e stop ]; do sleep 0.01; done; touch $meeting.finished; exit 0", 0, False),
        ("kill -TERM $$; sleep 0.1; exit 1", 1, False),  # scancel
        ("kill -USR1 $$; until [ -e stop ]; do sleep 0.01; done; kill -TERM $$; sleep 0.1; exit 1", 1, False),
    ],
)
def test_only_the_end_of_the_time_puts_the_job_back_into_the_queue(
    srun: str, exit_code: int, is_requeued: bool, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / ".slurm-7.finished").touch()  # of a former start
    code, output = run_as_job(job(shared=shared), tmp_path, srun)
    assert (code, "scontrol requeue 7" in output) == (exit_code, is_requeued), output
    assert not list(shared.iterdir())
    assert shared.stat().st_mode & 0o022 == 0, "where the machines meet nobody else may write"


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
        job(**fields)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "trainers"), [((), 3), (("--gpus", "2"), 2), (("--gpus", "2", "--trainers", "1"), 1)]
)
def test_the_command_prints_a_script_for_a_configuration(words: tuple[str, ...], trainers: int, tmp_path: Path) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text("[stream]\nshards = 24\n[local]\ntrainers = 3\n")
    options = ("-i", "/data/*.parquet", "--decoders", "3")
    done = print_script(*words, "-c", str(toml), *options, shared=tmp_path / "shared")
    assert done.exit_code == 0, done.output
    assert re.search(rf"--nproc-per-node={trainers}\b", done.stdout)
    assert f"OPTIONS=(-i '/data/*.parquet' --decoders 3 -c {toml})" in done.stdout
    assert done.stderr.startswith("4 machines; with fewer: ")


def test_a_run_that_can_go_on_with_no_fewer_machines_is_warned_of(tmp_path: Path) -> None:
    done = print_script("--trainers", "5", "--set", "stream.shards=12", shared=tmp_path, nodes="12")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("WARNING: 12 machines, and no fewer can share the run's shards with 5 trainers")
    assert '--nnodes=12:"$SLURM_JOB_NUM_NODES"' in done.stdout


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--fresh"], "No such option '--fresh'"),
        (["--epoch", "3"], "No such option '--epoch'"),
        (["--trainers", "many"], "Invalid value for '--trainers'"),
        (["-i", "a.parquet", "b.parquet"], "Got unexpected extra argument (b.parquet)"),
    ],
)
def test_an_option_that_icestream_run_does_not_know_is_a_mistake(words: list[str], error: str, tmp_path: Path) -> None:
    done = print_script(*words, shared=tmp_path)
    assert done.exit_code == 2
    assert error in done.stderr
    assert "Usage: cli slurm " in done.stderr


@pytest.mark.parametrize(
    ("nodes", "words", "error"),
    [
        ("2", ["--trainers", "3"], "6 trainers can't share stream.shards = 4 evenly.*with 3 trainers each: 4$"),
        ("3", [], "3 nodes: stream.shards = 4 must be a multiple of it"),
        ("3-4", ["--trainers", "3"], "3 nodes: "),
        ("4-1", [], "--nodes 4-1: expected a number, or a range such as 1-4"),
        ("4\n#SBATCH --uid=0", [], "--nodes"),
    ],
)
def test_machines_that_can_not_share_the_shards_are_a_mistake(
    nodes: str, words: list[str], error: str, tmp_path: Path
) -> None:
    done = print_script(*words, "--set", "stream.shards=4", shared=tmp_path, nodes=nodes)
    assert isinstance(done.exception, BadInputError)
    assert re.search(error, str(done.exception)), done.exception


def test_a_shared_folder_that_others_can_change_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert isinstance(print_script(shared=tmp_path).exception, BadInputError)
