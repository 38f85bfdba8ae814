"""Answers: JSON at once, and server-sent events whose first one decides the status."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rtlang.errors import RtlangError

logger = logging.getLogger(__name__)

to_json = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
#: No line ends of events, and yet where some clients cut them.
_LINE_ENDS = tuple((c.encode(), b"\\u%04x" % ord(c)) for c in "\u0085\u2028\u2029")


def data_event(payload: Any) -> bytes:
    return b"data: " + to_json(payload) + b"\n\n"


def named_event(name: str, payload: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + data_event(payload)


class Json(Response):
    """``content``: whatever msgspec can write; NaN and infinities become null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


async def _watch(receive: Receive, abort: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    abort()


@contextlib.asynccontextmanager
async def aborting(request: Request, abort: Callable[[], None]) -> AsyncIterator[None]:
    """``abort`` is called when the client goes away inside the block, whose body was read."""
    watcher = asyncio.create_task(_watch(request.receive, abort))
    try:
        yield
    finally:
        watcher.cancel()


class EventStream(Response):
    """Server-sent events. Made by ``open``, which waits for the first one: what can be refused
    is refused with its own status, never inside a 200.

    An error later on becomes one last event, by ``on_error``; the stream then ends without the
    events that claim success. Leaving early aborts the requests.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes | None,
        events: AsyncGenerator[bytes, None],
        on_error: Callable[[RtlangError], bytes],
        watcher: asyncio.Task[None],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._events = events
        self._on_error = on_error
        self._watcher = watcher

    @classmethod
    async def open(
        cls,
        request: Request,
        events: AsyncGenerator[bytes, None],
        abort: Callable[[], None],
        on_error: Callable[[RtlangError], bytes],
    ) -> EventStream:
        """Raises what ``events`` raises before its first one."""
        watcher = asyncio.create_task(_watch(request.receive, abort))
        try:
            first = await anext(events, None)
        except BaseException:
            watcher.cancel()
            raise
        return cls(first, events, on_error, watcher)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        try:
            if self._first is not None:
                await _send_part(send, self._first)
            async for event in self._events:
                await _send_part(send, event)
        except RtlangError as error:
            await _send_part(send, self._on_error(error))
        finally:
            self._watcher.cancel()
            await self._events.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_part(send: Send, body: bytes) -> None:
    if b"\xe2\x80" in body or b"\xc2\x85" in body:  # in texts only: JSON's own parts are ASCII
        for raw, escaped in _LINE_ENDS:
            body = body.replace(raw, escaped)
    await send({"type": "http.response.body", "body": body, "more_body": True})
