"""Reads ahead of the loop as far as data is there, and waits only for what the loop needs now.

On CUDA the copies of the next batches then run while the device trains. On the CPU nothing is read ahead: a copy there
takes the time of the same core. Pure: whoever makes the items waits and receives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Iterator over the items of ``source``, with None after each wait; up to ``most`` are made ahead of the one given.

    ``source`` yields None where it can't go on before something arrives, and goes on when it is asked again. It returns
    True at the end of the data, False if it was stopped. ``wait`` waits a while for something to arrive; ``poll`` takes
    one thing that has arrived, and is False if there was none. An error of any of them ends the reading, and what was
    made and not given is lost with it.
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
        """The data has ended, as far as the source is concerned; what was made may not be given yet."""

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
        """One item more, or the end; False if something has to arrive first."""
        try:
            item = next(self._source)
        except StopIteration as end:
            self._exhausted, self.ended = True, end.value
            return True
        if item is not None:
            self._made.append(item)
        return item is not None
