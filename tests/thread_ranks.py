"""Ranks as threads of one process: what they exchange goes through a barrier instead of through torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from services.trainer.ranks import Ranks

T = TypeVar("T")
PATIENCE_S = 60.0


class _Meeting:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=PATIENCE_S)
        self.brought: list[Any] = [None] * size

    def exchange(self, rank: int, brought: T) -> list[T]:
        self.brought[rank] = brought
        self.barrier.wait()
        everything = list(self.brought)
        self.barrier.wait()
        return everything


class ThreadRanks(Ranks):
    """One of them."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        super().__init__(rank, len(meeting.brought))
        self._meeting = meeting

    def gather(self, text: str) -> list[str]:
        return self._meeting.exchange(self.rank, text)

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        everything = self._meeting.exchange(self.rank, [tensor.clone() for tensor in tensors])
        for index, tensor in enumerate(tensors):
            tensor.copy_(sum(theirs[index] for theirs in everything))


def together(size: int, act: Callable[[ThreadRanks], T]) -> list[T]:
    """What each of ``size`` ranks returned. The first error of any of them is raised."""
    meeting = _Meeting(size)
    returned: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            returned[rank] = act(ThreadRanks(rank, meeting))
        except threading.BrokenBarrierError:
            pass  # another one failed
        except BaseException as error:  # noqa: BLE001  it is raised in the test's thread
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return returned
