"""Every use of random numbers has a stream of its own, and nobody seeds a generator in another way."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from workloads.base.batch import Microbatch
from workloads.base.noise import Noise
from workloads.base.random_streams import Purpose, SharedPurpose, file_stream, numpy_stream, stream_seed
from workloads.muons.generation.primaries import Primaries
from workloads.muons.generation.stream import CHUNK_EVENTS, CountRule, generate
from workloads.muons.purposes import MuonPurpose

ROOT = Path(__file__).resolve().parent.parent
MAY_SEED = {"workloads/base/random_streams.py", "common/streams.py"}
SEEDING = {
    *("default_rng", "SeedSequence", "RandomState", "Random", "SFC64", "Philox", "PCG64", "PCG64DXSM", "MT19937"),
    *("manual_seed", "manual_seed_all", "set_rng_seed"),
}
CPU = torch.device("cpu")


def sources() -> Iterator[tuple[str, str]]:
    """Path and text of every module of the product."""
    for room in ("common", "workloads", "services", "icestream"):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def purposes() -> list[Purpose]:
    """All purposes of all workloads."""
    for path in sorted(ROOT.glob("workloads/*/purposes.py")):
        importlib.import_module(f"workloads.{path.parent.name}.purposes")
    kinds = [kind for kind in Purpose.__subclasses__() if kind.__module__.startswith("workloads.")]
    return [purpose for kind in kinds for purpose in kind]


# ---- Nobody seeds in another way.


def seeded_otherwise(source: str) -> list[str]:
    """Places that seed a generator, or use a global one of numpy, but for `manual_seed(stream_seed(...))`."""
    tree = ast.parse(source)
    allowed = {
        id(call.func)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith(".manual_seed")
        and len(call.args) == 1
        and not call.keywords
        and isinstance(call.args[0], ast.Call)
        and ast.unparse(call.args[0].func) == "stream_seed"
    }
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Attribute(attr="random"), attr=name) if name.islower():
                is_bad = name != "fork_rng"
            case ast.Attribute(value=ast.Name(id="random" | "torch"), attr="seed"):
                is_bad = True
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
                is_bad = name in SEEDING
            case _:
                is_bad = False
        if is_bad and id(node) not in allowed:
            found.append(f"{node.lineno}: {ast.unparse(node)}")  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    "source",
    [
        "np.random.default_rng(seed)",
        "np.random.default_rng(stream_seed(PURPOSE, seed))",
        "from numpy.random import default_rng as made",
        "numpy.random.SeedSequence(3)",
        "np.random.RandomState(3)",
        "np.random.normal(3)",
        "np.random.seed(3)",
        "np.random.Generator(np.random.SFC64(3))",
        "random.Random(3)",
        "random.seed(3)",
        "torch.manual_seed(seed)",
        "torch.cuda.manual_seed_all(seed)",
        "torch.Generator().manual_seed(stream_seed(PURPOSE, seed) + 1)",
        "torch.default_generator.manual_seed(seed=seed)",
        "torch.seed()",
        "seed_it = torch.manual_seed",
    ],
)
def test_each_other_way_to_seed_is_seen(source: str) -> None:
    assert seeded_otherwise(source)


def test_streams_and_their_types_are_allowed() -> None:
    assert not seeded_otherwise(
        """
def f(rng: np.random.Generator, seed: int) -> torch.Generator:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(PURPOSE, config.seed, 3))
    rng.random(3), random.random(), numpy_stream(PURPOSE, seed)
    return torch.Generator().manual_seed(stream_seed(PURPOSE, seed))
"""
    )


def test_generators_are_seeded_by_streams_alone() -> None:
    found = {path: seeded_otherwise(source) for path, source in sources() if path not in MAY_SEED}
    assert not {path: places for path, places in found.items() if places}
    assert all(seeded_otherwise((ROOT / path).read_text()) for path in MAY_SEED)


# ---- Purposes.


def test_purposes_are_distinct_lines_that_begin_with_the_workloads_name() -> None:
    values = [purpose.value for purpose in purposes()]
    assert len(set(values)) == len(values) > 25
    for purpose in purposes():
        assert purpose.isprintable()
        workload = type(purpose).__module__.split(".")[1]
        assert workload == "base" or purpose.startswith(f"{workload} "), repr(purpose)


def test_every_purpose_is_used() -> None:
    product = "\n".join(source for _, source in sources())
    assert not [purpose for purpose in purposes() if f"{type(purpose).__name__}.{purpose.name}" not in product]


def test_streams_of_all_purposes_differ_for_the_same_numbers() -> None:
    for numbers in ((), (0,), (1, 2), (2**63 - 1, 0, 0)):
        made = [stream_seed(purpose, *numbers) for purpose in purposes()]
        # On a CPU, torch takes the lower 32 bits.
        assert len({seed % 2**32 for seed in made}) == len(made)
        assert all(0 <= seed < 2**63 for seed in made)
        first = {tuple(numpy_stream(purpose, *numbers).integers(0, 2**62, 2).tolist()) for purpose in purposes()}
        assert len(first) == len(made)


# ---- Numbers.


def test_every_number_counts_also_zeros_at_the_end() -> None:
    numbers = [(), (0,), (0, 0), (2,), (2, 0), (2, 0, 0), (0, 2), (20,), (-2,), (1, 23), (12, 3), (123,), (2**64,)]
    for one, other in combinations(numbers, 2):
        assert stream_seed(MuonPurpose.SPLITS, *one) != stream_seed(MuonPurpose.SPLITS, *other)


def test_numbers_are_integers_of_any_type() -> None:
    assert stream_seed(MuonPurpose.SPLITS, np.int64(3), True) == stream_seed(MuonPurpose.SPLITS, 3, 1)
    with pytest.raises(ValueError, match="format code 'd'"):
        stream_seed(MuonPurpose.SPLITS, 0.5)  # type: ignore[arg-type]


def test_seeds_are_the_same_in_every_version() -> None:
    assert stream_seed(SharedPurpose.TRAINING_NOISE, 1, 2, 3) == 7368257425920925053
    assert numpy_stream(SharedPurpose.SAMPLE_FILES, 5).integers(0, 100, 4).tolist() == [2, 32, 42, 90]
    assert file_stream(3, 1).integers(0, 100, 4).tolist() == [90, 84, 99, 27]


def test_simulated_files_share_no_numbers_with_a_stream_or_with_each_other() -> None:
    made = [file_stream(3), file_stream(3, 0), file_stream(3, 0, 0), file_stream(3, 1), file_stream(3, 1, 0)]
    made += [numpy_stream(purpose, 3) for purpose in purposes()] + [np.random.default_rng(3)]
    assert len({one.integers(0, 2**62) for one in made}) == len(made)


# ---- Bugs that were found.


class Draws:
    """Generator of events that tells the seeds it was given."""

    device = CPU

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def draw_counts(self, primary_E4: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        self.seeds.append(random.initial_seed())
        return torch.zeros(len(primary_E4), dtype=torch.int64)

    def draw_muons(self, primary_E4: torch.Tensor, counts_E: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        return torch.zeros(0, 3)

    def count_cdf(self, primary_E4: torch.Tensor, counts_E: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError


def microbatch(number: int) -> Microbatch:
    """One without events, with this number in its batch."""
    offsets = np.zeros(1, np.int64)
    return Microbatch(0, 0, 0, torch.from_numpy(offsets), offsets, {}, {}, 0, 0, number=number)


def test_generation_has_none_of_the_noise_of_the_training_with_the_same_seed() -> None:
    """The k-th chunk of 8,192 events was drawn from the very noise of the k-th training step."""
    generator, chunks = Draws(), 4
    rows = np.zeros((chunks * CHUNK_EVENTS, 4), np.float32)
    primaries = Primaries(np.zeros((len(rows), 2), np.uint64), rows)
    list(generate([primaries], generator, CountRule("sampled"), "vertical", 7))
    noise, of_training = Noise(SharedPurpose.TRAINING_NOISE, 7, CPU), set()
    for step in range(chunks):
        noise.begin(step)
        of_training |= {noise.of(microbatch(number)).initial_seed() for number in range(chunks)}
    assert len(of_training) == chunks**2
    assert len(set(generator.seeds)) == chunks
    assert not of_training & set(generator.seeds)


def test_no_chunk_of_generated_events_has_the_noise_of_any_step() -> None:
    """Torch takes 32 bits on a CPU: 4 of 40,000 chunks had the noise of one of 400,000 steps."""

    def words(purpose: Purpose, number: int) -> set[int]:
        return {stream_seed(purpose, 0, one) % 2**32 for one in range(number)}

    steps, chunks = words(SharedPurpose.TRAINING_NOISE, 200_000), words(MuonPurpose.GENERATION, 200_000)
    assert len(steps) > 199_900
    assert not steps & chunks
    assert {one % 4 for one in steps}.isdisjoint(one % 4 for one in chunks)
    others = set(purposes()) - {SharedPurpose.TRAINING_NOISE, MuonPurpose.GENERATION}
    assert {stream_seed(purpose, 0) % 4 for purpose in others} == {0}


def test_seed_2_of_one_use_is_not_the_numbers_2_and_0_of_another() -> None:
    """Generation with `default_rng(2)` had the numbers of the validation's `default_rng([2, 0])`."""

    def first(made: np.random.Generator) -> list[float]:
        return made.random(4).tolist()

    assert first(np.random.default_rng(2)) == first(np.random.default_rng([2, 0])), "numpy drops zeros at the end"
    uses: list[Callable[[], np.random.Generator]] = [
        lambda: numpy_stream(MuonPurpose.COUNT_PIT, 2),
        lambda: numpy_stream(MuonPurpose.COUNT_PIT, 2, 0),
        lambda: numpy_stream(MuonPurpose.SIMULATED_EVENTS, 2),
        lambda: numpy_stream(MuonPurpose.SIMULATED_EVENTS, 2, 0),
    ]
    for one, other in combinations(uses, 2):
        assert first(one()) != first(other())
