"""Signal: one lock, and everybody who waits for a change under it, threads and event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Signal:
    """All mutable state of one program run is guarded by ``lock``.

    There are two kinds of change: new chunks of a stream (frequent, few wait for them) and
    everything else. Waiting for the latter is not woken by the former.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._chunked = threading.Condition(self.lock)
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None], bool]] = []

    def changed(self) -> None:
        with self.lock:
            self._changed.notify_all()
            self._chunked.notify_all()
            woken, self._waiters = self._waiters, []
        self._wake(woken)

    def chunk(self) -> None:
        with self.lock:
            self._chunked.notify_all()
            if not self._waiters:
                return
            woken = [w for w in self._waiters if w[2]]
            self._waiters = [w for w in self._waiters if not w[2]]
        self._wake(woken)

    def wait(self, ready: Callable[[], bool], *, chunks: bool = False) -> None:
        """Block until ``ready()``, which is called under the lock. Interruptible by Ctrl-C."""
        condition = self._chunked if chunks else self._changed
        with self.lock:
            while not ready():
                condition.wait()

    async def async_wait(self, ready: Callable[[], bool], *, chunks: bool = False) -> None:
        """``wait`` for any event loop."""
        loop = asyncio.get_running_loop()
        while True:
            with self.lock:
                if ready():
                    return
                future: asyncio.Future[None] = loop.create_future()
                waiter = (loop, future, chunks)
                self._waiters.append(waiter)
            try:
                await future
            finally:
                with self.lock:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)

    @staticmethod
    def _wake(
        woken: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None], bool]],
    ) -> None:
        for loop, future, _ in woken:
            try:
                loop.call_soon_threadsafe(_set, future)
            except RuntimeError:
                if not loop.is_closed():  # a closed loop has nobody left who waits
                    raise


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
