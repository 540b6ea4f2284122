"""Every command answers --help at once, with an example."""

from __future__ import annotations

import subprocess
import sys

import pytest
from runs import PACKAGE_ROOT

from icestream.cli import VERBS

QUICK = ("run", "trainer", "evaluate", "generate", "export")
HEAVY = ("torch", "pyarrow", "fsspec", "zmq", "tensorboard", "matplotlib")


def icestream(*arguments: str) -> str:
    command = [sys.executable, "-m", "icestream", *arguments]
    result = subprocess.run(command, cwd=PACKAGE_ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr == ""
    return result.stdout


def test_help_lists_every_command_and_an_example() -> None:
    answer = icestream("--help")
    assert "Example: icestream simulate demo" in answer
    assert all(f"\n  {verb} " in answer for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_command_has_an_example_of_it(verb: str) -> None:
    _, example, text = icestream(verb, "--help").partition("Example")
    assert example
    assert f"icestream {verb}" in text


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([verb, "--help"] for verb in QUICK)])
def test_help_loads_nothing_that_takes_long(arguments: list[str]) -> None:
    probe = (
        "import sys; from icestream.cli import cli\n"
        f"try: cli({arguments!r})\n"
        "finally: print('LOADED', *sorted(name for name in sys.modules if '.' not in name))"
    )
    command = [sys.executable, "-c", probe]
    result = subprocess.run(command, cwd=PACKAGE_ROOT, capture_output=True, text=True, timeout=60, check=True)
    loaded = result.stdout.partition("LOADED ")[2].split()
    assert "click" in loaded
    assert not set(HEAVY) & set(loaded)
