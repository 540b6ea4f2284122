"""Small runs over committed files, whose audits are kept, so that a rewrite can't change the stream; and kept settings.

`python tests/pipeline/test_reference_runs.py` writes the audits anew. Do so only when the stream is meant to change:
raise the plan's version, and give the reason in CHANGELOG.md.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from runs import TINY_MODEL, Processes, settings

from icestream.commands.config import config
from services.trainer.audit import AUDIT_FILE

pytestmark = pytest.mark.slow

DATA = Path(__file__).resolve().parent.parent / "data/reference"
STREAM = (
    *TINY_MODEL,
    "trainer.likelihood.network.hidden=8",
    "stream.unit_events=200",
    "stream.batch_events=64",
    "stream.slots=4",
    "stream.slot_mib=1",
    "trainer.audit=true",
    "trainer.validation.events=0",
    "seed=3",
)


@dataclass(frozen=True)
class ReferenceRun:
    """Inputs and settings of one run."""

    name: str
    inputs: tuple[str, ...]
    settings: tuple[str, ...] = ()

    @property
    def audit(self) -> Path:
        """The kept audit."""
        return DATA / f"{self.name}.audit.jsonl"

    def run(self, processes: Processes) -> list[str]:
        """The audit of the run, carried out now, of one shard after the other."""
        inputs = [argument for name in self.inputs for argument in ("-i", str(DATA / name))]
        processes.train(*inputs, *settings(*STREAM, *self.settings))
        paths = sorted(processes.run_dir.rglob(AUDIT_FILE))
        return [line for path in paths for line in path.read_text().splitlines()]


PARQUET = ("bundles_0.parquet", "bundles_1.parquet")
RUNS = (
    ReferenceRun("parquet", PARQUET),
    ReferenceRun("hdf5", ("bundles.h5",)),
    ReferenceRun("two-shards", PARQUET, ("stream.shards=2", "stream.block_files=1")),
    ReferenceRun("outliers", PARQUET, ("stream.max_particles=100",)),
    ReferenceRun("epoch-and-a-half", PARQUET, ("epochs=2", "trainer.max_steps=25")),
    ReferenceRun("likelihood", PARQUET, ("trainer.model=likelihood",)),
)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_reference_run_trains_the_kept_microbatches_in_their_order(processes: Processes, run: ReferenceRun) -> None:
    assert run.run(processes) == run.audit.read_text().splitlines()


def test_the_configuration_has_the_kept_keys_and_defaults() -> None:
    result = CliRunner().invoke(config, ["--keys"])
    keys = [line for line in result.output.splitlines() if line and not line.startswith(" ")]
    assert keys == (DATA / "config-keys.txt").read_text().splitlines()


def main() -> None:
    """Write every audit."""
    for run in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            audit = run.run(Processes(Path(folder) / "run", Path(folder)))
        run.audit.write_text("".join(f"{line}\n" for line in audit))


if __name__ == "__main__":
    main()
