"""The one background event loop that runs the operations of every program of this process."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class _LoopThread:
    """A daemon thread with an event loop, and strong references to the tasks that it runs."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.thread = threading.Thread(target=self._run, name="rtlang-loop", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def spawn(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self.loop.create_task(start())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


_lock = threading.Lock()
_current: _LoopThread | None = None


def _get() -> _LoopThread:
    global _current
    with _lock:
        if _current is None:
            _current = _LoopThread()
        return _current


def _forget_after_fork() -> None:
    """A child process has the object but not the thread: it starts its own when it needs one."""
    global _current, _lock
    _lock = threading.Lock()
    _current = None


os.register_at_fork(after_in_child=_forget_after_fork)


def in_loop_thread() -> bool:
    current = _current
    return current is not None and threading.get_ident() == current.thread.ident


def spawn(start: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``start()`` as a task of the background loop; from any thread. It must not raise."""
    current = _get()
    current.loop.call_soon_threadsafe(current.spawn, start)


def call_soon(function: Callable[[], object]) -> None:
    """Call ``function`` in the loop's thread; never blocks, so a finalizer may use it."""
    current = _current
    if current is not None and not current.loop.is_closed():
        current.loop.call_soon_threadsafe(function)


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine in the background loop; the future belongs to the caller's thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, _get().loop)


async def in_thread(function: Callable[[], object]) -> None:
    """Run a function that blocks in a thread of its own, with the caller's context variables.

    Not in the caller's thread pool: programs that wait for each other must not share a few.
    """
    future: Future[None] = Future()

    def work() -> None:
        try:
            function()
        except BaseException as error:  # handed to whoever awaits
            future.set_exception(error)
        else:
            future.set_result(None)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name="rtlang-body", daemon=True)
    thread.start()
    # A cancelled caller must not cancel the future under the thread.
    await asyncio.shield(asyncio.wrap_future(future))
