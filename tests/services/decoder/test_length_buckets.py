"""Events of similar length in a batch: every event once, the same order each time, less padding, as well mixed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from decoded_files import decoded, planned
from hypothesis import given
from hypothesis import strategies as st
from muon_files import make_events, write_events

from common.config import StreamConfig
from common.streams import Stream, generator
from icestream.commands.plan.mixing import observed
from services.decoder.length_buckets import bucketed
from workloads.muons.columns import MUONS

Int64 = npt.NDArray[np.int64]


def random(seed: int = 1) -> np.random.Generator:
    return generator(Stream.BUCKETS, seed, 0, 0)


def pulses(number: int, seed: int = 1) -> Int64:
    """Counts with the spread of neutrino events: median about 60, a tail to thousands."""
    drawn = np.random.default_rng(seed).lognormal(4.1, 0.9, number)
    return np.clip(drawn, 5, 10_000).astype(np.int64)


def padded(counts: Int64, batch_events: int) -> float:
    """Particles of batches padded to their longest event, for one real particle."""
    whole = counts[: len(counts) // batch_events * batch_events].reshape(-1, batch_events)
    return float(whole.max(1).sum() * batch_events / whole.sum())


@given(st.lists(st.integers(0, 9), max_size=80), st.integers(1, 9), st.integers(1, 7), st.integers(0, 9))
def test_every_event_is_there_once_and_each_batch_is_a_part_of_a_sorted_window(
    lengths: list[int], batch_events: int, num_batches: int, seed: int
) -> None:
    counts = np.array(lengths, np.int64)
    order = bucketed(counts, batch_events, num_batches, random(seed))
    assert sorted(order.tolist()) == list(range(len(counts)))
    assert bucketed(counts, batch_events, num_batches, random(seed)).tolist() == order.tolist()
    num_whole = len(counts) // batch_events
    assert order[num_whole * batch_events :].tolist() == list(range(num_whole * batch_events, len(counts)))
    found = Counter(tuple(order[i * batch_events : (i + 1) * batch_events].tolist()) for i in range(num_whole))
    expected: Counter[tuple[int, ...]] = Counter()
    size = num_batches * batch_events
    for first in range(0, num_whole * batch_events, size):
        window = list(range(first, min(first + size, num_whole * batch_events)))
        window.sort(key=lambda event: lengths[event])
        expected.update(tuple(window[i : i + batch_events]) for i in range(0, len(window), batch_events))
    assert found == expected


def test_the_batches_are_permuted_and_not_in_the_order_of_length() -> None:
    counts = pulses(64 * 100)
    means = counts[bucketed(counts, 64, 100, random())].reshape(100, 64).mean(1)
    assert abs(np.corrcoef(np.arange(100), means)[0, 1]) < 0.3
    assert not np.array_equal(bucketed(counts, 64, 100, random(2)), bucketed(counts, 64, 100, random(3)))


def test_padding_is_saved() -> None:
    counts = pulses(65_536)
    plain, eight, thirty_two = (
        padded(counts[bucketed(counts, 256, number, random())] if number else counts, 256) for number in (0, 8, 32)
    )
    assert plain > 8
    assert eight < 3.2
    assert thirty_two < 1.8


def test_files_are_mixed_as_without_buckets_where_their_events_are_of_the_same_lengths() -> None:
    """The measure of `icestream plan`: 1 for a permutation of all events."""
    counts, files = pulses(32_768), np.random.default_rng(2).integers(0, 16, 32_768)
    mixed = files[bucketed(counts, 128, 16, random())].reshape(-1, 128)
    found = observed([Counter(batch.tolist()) for batch in mixed], Counter(files.tolist()))
    assert found.per_dof == pytest.approx(1, abs=5 * np.sqrt(2 / found.dof))


def test_a_unit_is_decoded_in_buckets_the_same_each_time(tmp_path) -> None:  # type: ignore[no-untyped-def]
    counts = (pulses(500) % 90).tolist()
    path = write_events(tmp_path / "f.parquet", make_events(counts), row_group_rows=100)
    settings = {"batch_events": 20, "max_particles": 2000, "max_particles_per_event": 80, "slot_mib": 1.0}
    orders = []
    for length_buckets in (0, 5, 5):
        stream = StreamConfig.model_validate({**settings, "length_buckets": length_buckets})
        (unit,) = decoded(planned([path], MUONS, stream), MUONS, stream, tmp_path)
        orders.append(unit.arrays.event_columns["source_row"][:, 0].tolist())
        found = np.diff(unit.arrays.offsets)
        assert found.tolist() == [counts[row] for row in orders[-1]]
        whole = found[: len(found) // 20 * 20].reshape(-1, 20)
        assert (whole == np.sort(whole)).all() == (length_buckets > 0)
    plain, first, second = orders
    assert first == second != plain
    assert sorted(first) == sorted(plain) == [row for row, count in enumerate(counts) if count <= 80]
