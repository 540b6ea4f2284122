"""Every use of random numbers has a stream of its own."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import torch

from workloads.base.batch import Microbatch
from workloads.base.context import Noise
from workloads.base.random_streams import Purpose, SharedPurpose, file_stream, numpy_stream, stream_seed
from workloads.muons.generation import CHUNK_EVENTS, CountRule, generate_events
from workloads.muons.primaries import Primaries

ROOT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")


def purposes() -> list[Purpose]:
    """All purposes of all workloads."""
    for path in sorted(ROOT.glob("workloads/**/*.py")):
        if "(Purpose):" in path.read_text():
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    kinds = [kind for kind in Purpose.__subclasses__() if kind.__module__.startswith("workloads.")]
    return [purpose for kind in kinds for purpose in kind]


# ---- Purposes.


def test_streams_of_all_purposes_differ_for_the_same_numbers() -> None:
    for numbers in ((), (0,), (1, 2), (2**63 - 1, 0, 0)):
        made = [stream_seed(purpose, *numbers) for purpose in purposes()]
        # On a CPU, torch takes the lower 32 bits.
        assert len({seed % 2**32 for seed in made}) == len(made)
        assert all(0 <= seed < 2**63 for seed in made)
        first = {tuple(numpy_stream(purpose, *numbers).integers(0, 2**62, 2).tolist()) for purpose in purposes()}
        assert len(first) == len(made)


def test_seeds_are_the_same_in_every_version() -> None:
    assert stream_seed(SharedPurpose.TRAINING_NOISE, 1, 2, 3) == 7368257425920925053
    assert numpy_stream(SharedPurpose.SAMPLE_FILES, 5).integers(0, 100, 4).tolist() == [2, 32, 42, 90]
    assert file_stream(3, 1).integers(0, 100, 4).tolist() == [90, 84, 99, 27]


# ---- Bugs that were found.


class Draws:
    """Generator of events that tells the seeds it was given."""

    device = CPU

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def draw_counts(self, primary_E4: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        self.seeds.append(random.initial_seed())
        return torch.zeros(len(primary_E4), dtype=torch.int64)

    def draw_muons(
        self, primary_E4: torch.Tensor, counts_E: torch.Tensor, random: torch.Generator, _: None
    ) -> torch.Tensor:
        return torch.zeros(0, 3)


def microbatch(number: int) -> Microbatch:
    """One without events, with this number in its batch."""
    offsets = np.zeros(1, np.int64)
    return Microbatch(0, 0, 0, torch.from_numpy(offsets), offsets, {}, {}, 0, 0, number=number)


def test_generation_has_none_of_the_noise_of_the_training_with_the_same_seed() -> None:
    """The k-th chunk of 8,192 events was drawn from the very noise of the k-th training step."""
    generator, chunks = Draws(), 4
    rows = np.zeros((chunks * CHUNK_EVENTS, 4), np.float32)
    primaries = Primaries(np.zeros((len(rows), 2), np.uint64), rows)
    list(generate_events([primaries], generator, CountRule("sampled"), "vertical", 7))
    noise, of_training = Noise(SharedPurpose.TRAINING_NOISE, 7, CPU), set()
    for step in range(chunks):
        noise.begin(step)
        of_training |= {noise.of(microbatch(number)).initial_seed() for number in range(chunks)}
    assert len(of_training) == chunks**2
    assert len(set(generator.seeds)) == chunks
    assert not of_training & set(generator.seeds)
