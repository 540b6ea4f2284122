"""Help of the commands that a new user types first."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from icestream.cli import cli
from workloads import registry


def help_of(verb: str) -> str:
    result = CliRunner().invoke(cli, [verb, "--help"])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_option_for_a_model_names_those_of_every_workload() -> None:
    for verb in ("run", "trainer"):
        told = " ".join(help_of(verb).split())
        for workload in registry.every_workload():
            assert f"{workload.name}: {', '.join(workload.models)}" in told


@pytest.mark.parametrize(
    ("verb", "parts"),
    [
        ("run", ["--model likelihood -c configs/demo-likelihood.toml", "Exit codes: 0 finished"]),
        (
            "evaluate",
            ["--beside runs/demo-likelihood", "--simulate bench", "--thresholds limits.toml", "Exit codes: 0"],
        ),
        ("generate", ["primaries.parquet -o generated.parquet\n", "--primaries-from h3a"]),
        ("export", ["-o model/\n", "--report runs/demo/evaluation/report.json"]),
    ],
)
def test_examples_stand_on_lines_of_their_own(verb: str, parts: list[str]) -> None:
    told = help_of(verb)
    for part in parts:
        assert part in told
    examples = [line for line in told.splitlines() if line.startswith(f"    icestream {verb} ")]
    assert len(examples) > 1, told
