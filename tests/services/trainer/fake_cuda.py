"""CUDA's streams, events and registered memory, as far as the copier uses them: tensors are on the CPU.

What was put on a stream happens when somebody waits for it, in order, and not before: a copy read too early is rubbish.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from services.trainer.copier import CudaCopier

RUBBISH = 0xEE


class FakeStream:
    """Work in order. ``number``: of the newest work."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.work: list[Callable[[], object]] = []
        self.number = 0
        self.done = 0

    def put(self, work: Callable[[], object]) -> None:
        self.number += 1
        self.work.append(work)

    def complete(self, number: int) -> None:
        """Do the work up to this number."""
        while self.done < number:
            self.done += 1
            self.work.pop(0)()

    def synchronize(self) -> None:
        self.complete(self.number)

    def wait_event(self, event: FakeEvent) -> None:
        """The stream that trains waits: its work reads the copies from now on."""
        event.complete()


class FakeEvent:
    def __init__(self, cuda: FakeCuda, *, blocking: bool = False) -> None:
        self._cuda = cuda
        self._blocking = blocking
        self._at: tuple[FakeStream, int] | None = None

    def record(self, stream: FakeStream) -> None:
        self._at = stream, stream.number

    def complete(self) -> None:
        assert self._at is not None
        self._at[0].complete(self._at[1])

    def synchronize(self) -> None:
        assert self._blocking, "otherwise the waiting host would keep a core busy"
        self._cuda.waits += 1
        self._cuda.before_wait()
        self.complete()


class FakeCuda:
    """The runtime. Errors as CUDA has them: that of a failed call stays until somebody asks, as torch does after each
    kernel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: str = "") -> None:
        self.fails = fails
        self.last_error = 0
        self.streams: list[FakeStream] = []
        self.training = FakeStream(self)
        self._of_thread = threading.local()
        self.copied_bytes: list[int] = []
        """Bytes of each transfer."""
        self.shared = 0
        """Tensors of which the allocator knows that another stream uses them."""
        self.waits = 0
        self.before_wait: Callable[[], None] = lambda: None
        monkeypatch.setattr("torch.cuda.cudart", lambda: self)
        monkeypatch.setattr("torch.cuda.Stream", self._stream)
        monkeypatch.setattr("torch.cuda.Event", lambda **words: FakeEvent(self, **words))
        monkeypatch.setattr("torch.cuda.current_stream", lambda device: self.current)
        monkeypatch.setattr("torch.cuda.stream", self._on)
        monkeypatch.setattr(Tensor, "to", lambda tensor, device, **words: self._to(tensor, device, **words))
        monkeypatch.setattr(Tensor, "__sub__", lambda tensor, other: self._minus(tensor, other))
        monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: self._record_stream(tensor, stream))

    @property
    def current(self) -> FakeStream:
        """Stream of the calling thread's work."""
        found: FakeStream = getattr(self._of_thread, "stream", self.training)
        return found

    def call(self, name: str) -> int:
        if self.fails != name:
            return 0
        self.last_error = 712
        return 712

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        return self.call("register")

    def cudaHostUnregister(self, pointer: int) -> int:
        return self.call("unregister")

    def kernel(self, *arguments: object, **words: object) -> None:
        error, self.last_error = self.last_error, 0
        if error:
            raise RuntimeError(f"CUDA error: {error}")

    def _stream(self, device: torch.device, priority: int = 0) -> FakeStream:
        self.streams.append(FakeStream(self))
        return self.streams[-1]

    @contextlib.contextmanager
    def _on(self, stream: FakeStream) -> Iterator[None]:
        before, self._of_thread.stream = self.current, stream
        yield
        self._of_thread.stream = before

    def _later(self, like: Tensor, result: Callable[[], Tensor]) -> Tensor:
        """Result of work on the current stream."""
        late = torch.empty_like(like)
        late.view(torch.uint8).fill_(RUBBISH)
        self.current.put(lambda: late.copy_(result()))
        return late

    def _to(self, tensor: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
        assert device.type == "cuda"
        assert non_blocking
        self.copied_bytes.append(tensor.nbytes)
        return self._later(tensor, lambda: tensor)

    def _minus(self, tensor: Tensor, other: int) -> Tensor:
        return self._later(tensor, lambda: torch.sub(tensor, other))

    def _record_stream(self, tensor: Tensor, stream: FakeStream) -> None:
        assert stream is self.training
        self.shared += 1


class WatchedCopier(CudaCopier):
    """Copier that counts its batches."""

    marked = 0
    handed_over = 0
    most_ahead = 0

    def mark(self) -> torch.cuda.Event:
        self.marked += 1
        self.most_ahead = max(self.most_ahead, self.marked - self.handed_over - 1)
        return super().mark()

    def hand_over(self, mark: torch.cuda.Event) -> None:
        self.handed_over += 1
        super().hand_over(mark)
