"""The stream and the configuration's keys are those that were kept in tests/data/reference."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from reference_runs import DATA, RUNS, ReferenceRun
from runs import Processes

from icestream.commands.config import config

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_reference_run_trains_the_kept_microbatches_in_their_order(processes: Processes, run: ReferenceRun) -> None:
    assert run.run(processes) == run.audit.read_text().splitlines()


def test_the_configuration_has_the_kept_keys_and_defaults() -> None:
    result = CliRunner().invoke(config, ["--keys"])
    keys = [line for line in result.output.splitlines() if line and not line.startswith(" ")]
    assert keys == (DATA / "config-keys.txt").read_text().splitlines()
