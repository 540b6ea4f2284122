"""Random streams: each use of random numbers has a separate one, even if all of them are given the same seed. Pure.

A stream is named by its purpose and by numbers, such as seed, step and lane. Number lists alone would not do: numpy
drops their trailing zeros, so that `default_rng(2)` is `default_rng([2, 0])`.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

import numpy as np


class Purpose(StrEnum):
    """Use of random numbers. Each workload derives its own; a value occurs once in the project, on one line."""


class SharedPurpose(Purpose):
    """Uses that all workloads have."""

    INITIAL_WEIGHTS = "initial weights"
    TRAINING_NOISE = "training noise"
    HELD_OUT_NOISE = "held-out noise"
    """Noise of a loss on events outside the training."""
    TRAINER = "trainer"
    """Torch's global generators during a training."""
    SAMPLE_FILES = "sample files"
    """Order of the files from which events are sampled."""
    VALIDATION_FILES = "validation files"


_KINDS = "training noise", "generation"
"""Ends of the purposes that have thousands of streams of torch's numbers each."""


def stream_seed(purpose: Purpose, *numbers: int) -> int:
    """Seed of torch's generators, of 63 pseudorandom bits; other purposes and numbers have unrelated seeds.

    Torch's generator on a CPU uses the lower 32 bits only. The last two of them say the kind of the purpose: noise of
    the training and of generated events never agree with each other, or with anything else. The other 30 may: two of n
    steps of one training have the same noise with a chance of n² / 2³¹, which does no harm.
    """
    kind = next((kind for kind, words in enumerate(_KINDS, 1) if purpose.endswith(words)), 0)
    return _hash(purpose, numbers) & ~3 | kind


def numpy_stream(purpose: Purpose, *numbers: int) -> np.random.Generator:
    """Generator with the same numbers each time."""
    return np.random.default_rng(_hash(purpose, numbers))


def file_stream(seed: int, *key: int) -> np.random.Generator:
    """Generator of a simulated file. SFC64, which no other stream is.

    It has no purpose, so that data sets have the same bytes as those that earlier versions made.
    """
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=key)))


def _hash(purpose: Purpose, numbers: tuple[int, ...]) -> int:
    """63 bits of a hash."""
    text = "\n".join([purpose.value, *(f"{number:d}" for number in numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
