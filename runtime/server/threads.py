"""Blocking work beside an event loop, in threads that nobody waits for when the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """The result of ``work``. Each has its own thread: a pool of them may be taken up by others who
    wait for a scheduler that does not answer."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.done():  # given up
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: given up, too
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name="rtlang-work", daemon=True).start()
    return await future
