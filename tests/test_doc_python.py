"""Python of the README, the pages and examples/ for other frameworks: executed, or marked with the reason."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_examples import ROOT, command_lines, pages, python_blocks

ELSEWHERE = {"docs/development/extending.md": "tests/pipeline/test_third_workload.py"}
"""Pages whose blocks are files of an example -> the test that runs them."""
DATA = 'import icestream\nicestream.simulate("data", events=9_000, files=3, preset="bench", seed=1)\n'
BEFORE = {
    "README.md": DATA + "model = lambda primary, muons, offsets: primary.sum()\n",
    "docs/how-to/custom-model.md": "",
    "docs/how-to/python.md": DATA,
    "docs/how-to/python-models.md": (
        "import icestream, pathlib\n"
        'icestream.simulate("held-out", events=1_000, files=1, preset="bench", seed=2)\n'
        '[path.rename(f"held-out/{path.name}") for path in pathlib.Path("held-out").glob("*/*.parquet")]\n'
    ),
    "docs/tutorial/4-notebook.md": "",
}
"""Page -> what is there before its first block: files, and in the README a model."""
WITH_COMMANDS = {"docs/how-to/python-models.md"}
"""Pages whose commands are part of the example."""


def script_of(name: str) -> str:
    """Blocks of a page as one script, in order; the device is the CPU."""
    parts = [(block.place, block.source) for block in python_blocks(ROOT / name) if not block.not_run]
    if name in WITH_COMMANDS:
        parts += [
            (command.place, f"subprocess.run({[sys.executable, '-m', *command.words]}, check=True)\n")
            for command in command_lines(ROOT / name, "icestream")
            if not command.is_inline
        ]
    parts.sort(key=lambda part: int(part[0].rpartition(":")[2]))
    return "import subprocess\n" + BEFORE[name] + "".join(source for _, source in parts).replace('"cuda"', '"cpu"')


def test_every_page_with_python_is_executed_here_or_by_the_test_that_is_named() -> None:
    with_python = {page.relative_to(ROOT).as_posix() for page in pages() if python_blocks(page)}
    assert with_python == BEFORE.keys() | ELSEWHERE.keys()
    assert [name for name, test in ELSEWHERE.items() if name not in (ROOT / test).read_text()] == []
    assert [name for name in BEFORE if all(block.not_run for block in python_blocks(ROOT / name))] == []


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", BEFORE)
def test_the_python_of_a_page_runs_from_its_first_block_to_its_last(name: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(script_of(name))
    printed(tmp_path, script)


def printed(folder: Path, *words: object) -> list[str]:
    """Return the lines that a Python script prints."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    printed(folder, "-m", "icestream", "simulate", "demo", "--events", 5000, "--files", 4)
    return folder


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "last_lines"),
    [
        ([EXAMPLES / "lightning_counts.py"], (r"step 9, validation -?\d.*", r"step 27, validation -?\d.*")),
        (
            ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", 2, EXAMPLES / "accelerate_counts.py"],
            ("10 steps, 5000 events", "20 steps, 15000 events"),
        ),
    ],
)
def test_an_example_goes_on_behind_its_last_checkpoint(
    demo: Path, command: list[object], last_lines: tuple[str, str]
) -> None:
    for epochs, line in zip((1, 3), last_lines, strict=True):
        assert re.fullmatch(line, printed(demo, *command, "demo", epochs)[-1])


@pytest.mark.process
@pytest.mark.slow
def test_the_example_of_data_parallel_training_has_the_same_losses_for_one_and_two_ranks(demo: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node")
    of_one, of_two = (printed(demo, *torchrun, ranks, EXAMPLES / "ddp_counts.py", "demo", 2) for ranks in (1, 2))
    assert of_one == of_two != []


@pytest.mark.process
@pytest.mark.slow
def test_the_example_of_a_sweep_compares_four_trials(demo: Path) -> None:
    assert len({line.split()[-1] for line in printed(demo, EXAMPLES / "sweep_counts.py", "demo")}) == 4
