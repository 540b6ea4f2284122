"""Read-ahead of the loop as far as data have arrived, with a wait only for the item that the loop needs now.

On CUDA the copies of the next batches then run while the device trains. On the CPU nothing is read ahead: a copy there
takes time of the same core. Pure: the source of the items waits and receives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Iterator over the items of ``source``, with None after each wait; up to ``most`` items are made in advance.

    ``source`` yields None where it needs a message to continue, and continues at the next call. It returns True at the
    end of the data, False if it was stopped. ``wait`` waits a short time for a message; ``poll`` takes one message that
    has arrived, and returns False without one. An error of any of them ends the reading, and the items made but not
    yielded are lost with it.
    """

    def __init__(
        self,
        source: Generator[T | None, None, bool],
        most: int,
        *,
        wait: Callable[[], None],
        poll: Callable[[], bool],
    ) -> None:
        self._source = source
        self._most = most
        self._wait = wait
        self._poll = poll
        self._made: deque[T] = deque()
        self._exhausted = False
        self.ended = False
        """True once the source has no more data; items in advance may be left."""

    def __iter__(self) -> Iterator[T | None]:
        while True:
            while not self._made and not self._exhausted:
                if not self._make():
                    self._wait()
                    yield None
            while len(self._made) <= self._most and not self._exhausted:
                if not self._make() and not self._poll():
                    break
            if not self._made:
                return
            yield self._made.popleft()

    def _make(self) -> bool:
        """Make one more item, or note the end; False if a message has to arrive first."""
        try:
            item = next(self._source)
        except StopIteration as end:
            self._exhausted, self.ended = True, end.value
            return True
        if item is not None:
            self._made.append(item)
        return item is not None
