"""RemoteStream: a request to a server, read by a task of the background loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

from rtlang import loop
from rtlang.errors import EngineError, RequestAborted, RtlangError
from rtlang.runtime.chunk import Chunk

#: A server that was asked to end a request gets so long, so often, before the connection is cut.
_ABORT_WAIT_S = 0.5
_ABORT_TRIES = 10


class RemoteStream:
    """Implements ``Stream``. Iterate it in the background loop, as programs' calls do."""

    def __init__(
        self,
        rid: str,
        source: AsyncGenerator[Chunk, None],
        ask_to_end: Callable[[], Awaitable[bool]] | None = None,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        """``source`` ends with a chunk that has ``finish``, or raises. ``ask_to_end`` asks the
        server to end the request, whose source then tells how it ended; False: there is nothing
        to ask for. Without it, an abort cuts the connection. ``on_end`` is called in any case,
        in the loop, even if the source never began."""
        self.rid = rid
        self._source = source
        self._ask_to_end = ask_to_end
        self._on_end = on_end
        self._queue: asyncio.Queue[Chunk | RtlangError] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._aborted = False
        self._done = False
        loop.spawn(self._read)

    def __repr__(self) -> str:
        return f"<RemoteStream {self.rid} {'done' if self._done else 'running'}>"

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            while True:
                item = await self._queue.get()
                if isinstance(item, RtlangError):
                    raise item
                yield item
                if item.finish is not None:
                    return
        finally:
            self.abort()

    def abort(self) -> None:
        if not self._done and not self._aborted:
            self._aborted = True
            loop.spawn(self._end)

    async def _read(self) -> None:
        self._task = asyncio.current_task()
        try:
            if self._aborted:
                raise asyncio.CancelledError
            async with contextlib.aclosing(self._source) as chunks:
                async for chunk in chunks:
                    self._done = chunk.finish is not None
                    self._queue.put_nowait(chunk)
        except RtlangError as error:
            self._queue.put_nowait(error)
        except asyncio.CancelledError:
            self._queue.put_nowait(RequestAborted("the request was aborted"))
        except Exception as error:  # ours; the reader must not wait for ever
            failed = EngineError(f"reading the server's answer failed: {error!r}")
            failed.__cause__ = error
            self._queue.put_nowait(failed)
        finally:
            self._done = True
            if self._on_end is not None:
                self._on_end()

    async def _end(self) -> None:
        while self._task is None:
            await asyncio.sleep(0)
        for _ in range(_ABORT_TRIES):
            if self._done or self._ask_to_end is None or not await self._ask_to_end():
                break
            await asyncio.wait({self._task}, timeout=_ABORT_WAIT_S)
        if not self._done:
            self._task.cancel()
