"""Account of a resumed stream against an undisturbed one, as in benchmarks/peers."""

from __future__ import annotations

import random
import re

import pytest

from benchmarks.peers.accounting import Account, account, mixing
from benchmarks.peers.claims import CLAIMS, QUESTIONS
from benchmarks.peers.loaders import PEERS

UNDISTURBED = [3, 1, 4, 15, 9, 2, 6, 5]


def test_moved_is_the_fewest_events_that_restore_the_order() -> None:
    one_later = [1, 4, 15, 9, 2, 6, 3, 5]
    assert account(UNDISTURBED, one_later) == Account(lost=0, repeated=0, moved=1)
    halves_exchanged = UNDISTURBED[3:] + UNDISTURBED[:3]
    assert account(UNDISTURBED, halves_exchanged).moved == 3
    assert account(UNDISTURBED, UNDISTURBED[::-1]).moved == 7


def test_a_stream_may_lose_repeat_and_move_at_the_same_time() -> None:
    assert account(UNDISTURBED, [3, 4, 1, 15, 15, 9, 2, 6]) == Account(lost=1, repeated=1, moved=1)


def test_mixing_is_the_size_of_a_batch_for_a_file_each_and_one_for_a_permutation() -> None:
    in_order = [[file] * 100 for file in range(10) for _ in range(5)]
    assert mixing(in_order) == pytest.approx(100 * 50 / 49, rel=1e-9)
    events = [file for batch in in_order for file in batch]
    random.Random(1).shuffle(events)
    permuted = [events[first : first + 100] for first in range(0, len(events), 100)]
    assert mixing(permuted) == pytest.approx(1.0, abs=0.15)


def test_each_claim_of_a_loader_names_a_page_of_its_documentation() -> None:
    assert set(CLAIMS) == {peer.module for peer in PEERS}
    for claims in CLAIMS.values():
        assert len(claims.answers) == len(QUESTIONS)
        pages = [re.findall(r"\d+", re.findall(r"\(([\d, ]+)\)$", text)[0]) for text in claims.answers if text != "-"]
        assert {int(page) for answer in pages for page in answer} == set(range(1, len(claims.pages) + 1))
