"""Reading ahead: as far as data is there, never waiting for more than the next item."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from services.trainer.stream.ahead import ReadAhead


class Deliveries:
    """A source of items made of numbers that arrive one by one; wait() and poll() let the next one arrive.

    ``at_hand``: how many of them poll() finds before the next wait().
    """

    def __init__(self, items: int, *, at_hand: int = 0, stop_after: int | None = None) -> None:
        self.arrived: list[int] = []
        self.made = 0
        self.waits = 0
        self.at_hand = at_hand
        self._items = items
        self._next = 0
        self._stop_after = stop_after

    def source(self) -> Generator[int | None, None, bool]:
        for number in range(self._items):
            while number not in self.arrived:
                if self._stop_after == number:
                    return False
                yield None
            self.made += 1
            yield number
        return True

    def wait(self) -> None:
        self.waits += 1
        self._arrive()

    def poll(self) -> bool:
        if self.at_hand == 0 or self._next == self._items:
            return False
        self.at_hand -= 1
        self._arrive()
        return True

    def _arrive(self) -> None:
        self.arrived.append(self._next)
        self._next += 1

    def ahead(self, most: int) -> ReadAhead[int]:
        return ReadAhead(self.source(), most, wait=self.wait, poll=self.poll)


@pytest.mark.parametrize("most", [0, 1, 2, 5])
@pytest.mark.parametrize("at_hand", [0, 1, 3, 100])
def test_every_item_comes_once_in_order_and_the_end_after_the_last(most: int, at_hand: int) -> None:
    deliveries = Deliveries(7, at_hand=at_hand)
    ahead = deliveries.ahead(most)
    given = list(ahead)
    assert [item for item in given if item is not None] == list(range(7))
    assert given.count(None) == deliveries.waits
    assert ahead.ended


def given_and_made(items: Iterator[int | None], deliveries: Deliveries) -> list[tuple[int, int]]:
    return [(item, deliveries.made) for item in items if item is not None]


def test_as_many_as_told_are_made_beyond_the_given_one() -> None:
    deliveries = Deliveries(6, at_hand=100)
    pairs = given_and_made(iter(deliveries.ahead(2)), deliveries)
    assert pairs == [(0, 3), (1, 4), (2, 5), (3, 6), (4, 6), (5, 6)]


def test_with_none_ahead_nothing_is_polled_and_nothing_made_early() -> None:
    deliveries = Deliveries(4, at_hand=100)
    pairs = given_and_made(iter(deliveries.ahead(0)), deliveries)
    assert pairs == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert deliveries.at_hand == 100


def test_it_waits_only_where_nothing_was_made_before() -> None:
    deliveries = Deliveries(6)
    items = (item for item in deliveries.ahead(2) if item is not None)
    assert (next(items), deliveries.waits) == (0, 1)
    deliveries.arrived += [1, 2, 3]  # while item 0 was used
    assert [next(items) for _ in range(3)] == [1, 2, 3]
    assert deliveries.waits == 1
    deliveries._next = 4
    assert (next(items), deliveries.waits) == (4, 2)


def test_a_source_that_was_stopped_does_not_count_as_ended_and_what_was_made_is_given() -> None:
    deliveries = Deliveries(9, at_hand=3, stop_after=3)
    ahead = deliveries.ahead(2)
    assert [item for item in ahead if item is not None] == [0, 1, 2]
    assert not ahead.ended


def test_an_error_while_reading_ahead_ends_the_reading() -> None:
    deliveries = Deliveries(5, at_hand=1)

    def poll() -> bool:
        if deliveries.poll():
            return True
        raise ConnectionError

    with pytest.raises(ConnectionError):
        list(ReadAhead(deliveries.source(), 2, wait=deliveries.wait, poll=poll))
