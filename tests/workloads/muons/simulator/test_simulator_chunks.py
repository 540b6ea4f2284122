import numpy as np
import pytest

from workloads.muons.simulator.chunks import chunks


@pytest.mark.parametrize("max_muons", [1, 3, 7, 100])
def test_chunks_cover_every_muon_once_and_know_its_event(max_muons):
    counts = np.array([0, 2, 0, 0, 11, 1, 0, 5, 0])
    event = np.arange(len(counts), dtype=np.float32)
    pieces = list(chunks(counts, max_muons))

    assert [piece.start for piece in pieces] == list(range(0, 19, max_muons))
    assert all(len(piece) <= max_muons for piece in pieces)
    np.testing.assert_array_equal(np.concatenate([piece.spread(event) for piece in pieces]), np.repeat(event, counts))


def test_an_event_larger_than_a_chunk_is_split():
    assert [len(piece) for piece in chunks(np.array([10]), 4)] == [4, 4, 2]


def test_no_muons_make_no_chunks():
    assert list(chunks(np.zeros(5, np.int64))) == []
    assert list(chunks(np.zeros(0, np.int64))) == []
