"""An asyncio loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
BOUND_S = 30.0


class LoopThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="federation", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(BOUND_S)

    def stop(self) -> None:
        self.run(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(BOUND_S)
        self.loop.close()

    async def _cancel_all(self) -> None:
        """Handlers asleep in a hang, above all."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await abort_transports()


async def abort_transports() -> None:
    """Cut every connection of the running loop, before it ends.

    TLS connections that wait for the other side's goodbye would outlive it (ResourceWarning), and asyncio
    has no public list of them.
    """
    for transport in list(getattr(asyncio.get_running_loop(), "_transports", {}).values()):
        transport.abort()
    for _ in range(3):  # the transport's own callback, the TLS layer's, the protocol's
        await asyncio.sleep(0)
