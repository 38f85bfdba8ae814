"""Streams: how chunks travel from the receiver's thread to whoever waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from rtlang.errors import DeadlineExceeded, EngineError, RtlangError
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.detokenizer import Detokenizer
from rtlang.runtime.messages import Output

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class ChunkQueue:
    """Chunks of one or several requests; one consumer, from a thread or an event loop."""

    def __init__(self) -> None:
        self._items: deque[Chunk | RtlangError] = deque()
        self._ready = threading.Condition()
        self._waiter: Waiter | None = None

    def put(self, item: Chunk | RtlangError) -> Waiter | None:
        """Append; returns the event-loop waiter that the caller must wake (see ``wake``)."""
        with self._ready:
            self._items.append(item)
            self._ready.notify()
            waiter, self._waiter = self._waiter, None
        return waiter

    def get(self) -> Chunk:
        """The next chunk; blocks. Raises the request's error when its turn has come."""
        return _unwrap(self.take())

    async def aget(self) -> Chunk:
        return _unwrap(await self.atake())

    def take(self) -> Chunk | RtlangError:
        """The next chunk or error; blocks."""
        with self._ready:
            while not self._items:
                self._ready.wait()
            return self._items.popleft()

    async def atake(self) -> Chunk | RtlangError:
        loop = asyncio.get_running_loop()
        while True:
            with self._ready:
                if self._items:
                    return self._items.popleft()
                future: asyncio.Future[None] = loop.create_future()
                self._waiter = (loop, future)
            await future


def _unwrap(item: Chunk | RtlangError) -> Chunk:
    if isinstance(item, RtlangError):
        raise item
    return item


def wake(waiters: list[Waiter]) -> None:
    """Wake event-loop consumers, with one call into each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in waiters:
        by_loop.setdefault(loop, []).append(future)
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_all, futures)
        except RuntimeError:
            if not loop.is_closed():  # a closed loop has nobody left who waits
                raise


def _set_all(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class EngineStream:
    """One running request as its caller sees it; iterate it once, or ``abort`` it.

    Iterating raises the request's error. Thread-safe.
    """

    def __init__(
        self,
        rid: str,
        detokenizer: Detokenizer | None,
        abort: Callable[[str], None],
        *,
        queue: ChunkQueue | None = None,
        index: int = 0,
        choice: int = 0,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """``queue``: share one with other streams, whose chunks then come in order of time;
        ``on_end``: called once by the receiver's thread, before the last chunk can be seen."""
        self.rid = rid
        self.index = index
        self.choice = choice
        self.queue = queue or ChunkQueue()
        self._detokenizer = detokenizer
        self._abort = abort
        self._on_end = on_end
        self._done = False
        self._text: list[str] = []  # all deltas, for an error that carries the partial text

    def __repr__(self) -> str:
        return f"<EngineStream {self.rid} {'done' if self._done else 'running'}>"

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            chunk = self.queue.get()
            yield chunk
            if chunk.finish is not None:
                return

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while True:
            chunk = await self.queue.aget()
            yield chunk
            if chunk.finish is not None:
                return

    def abort(self) -> None:
        """End the request, if it still runs; the iteration then raises ``RequestAborted``."""
        if not self._done:
            self._abort(self.rid)

    # Called by the receiver's thread only.

    def push(self, output: Output) -> Waiter | None:
        """Detokenize an output and hand it on as a chunk."""
        detokenizer = self._detokenizer
        if self._done:
            return None
        delta = ""
        if detokenizer is not None:
            try:
                delta = detokenizer.feed(output.ids, output.finish)
            except EngineError as error:  # its own stop regex takes too long
                self.abort()
                return self.fail(error)
            self._text.append(delta)
        chunk = Chunk(text=delta, token_ids=output.ids)
        chunk.logprobs, chunk.prompt_logprobs = output.logprobs, output.prompt_logprobs
        chunk.index, chunk.choice = self.index, self.choice
        if output.finish is not None:
            self._end()
            chunk.finish, chunk.usage = output.finish, output.usage
            chunk.timings = output.timings
            if detokenizer is not None:
                chunk.kept_ids, chunk.kept_text = detokenizer.kept_ids, detokenizer.kept_text
        return self.queue.put(chunk)

    def fail(self, error: RtlangError) -> Waiter | None:
        if self._done:
            return None
        self._end()
        error.index = self.index
        error.data["choice"] = self.choice
        if isinstance(error, DeadlineExceeded):
            error.data["text"] = "".join(self._text)
        return self.queue.put(error)

    def _end(self) -> None:
        self._done = True
        if self._on_end is not None:
            self._on_end()
