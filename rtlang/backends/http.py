"""HTTP: an rtlang server as a backend that can do all that an engine in the process can."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any

import msgspec

from rtlang import loop
from rtlang.backends.answers import rtlang_error, rtlang_error_of
from rtlang.backends.base import Call, Capabilities, Stream
from rtlang.backends.connection import Connection
from rtlang.backends.remote_stream import RemoteStream
from rtlang.backends.wire import body_of, chunk_of, decode_event
from rtlang.errors import (
    ConfigError,
    DeadlineExceeded,
    EngineError,
    NotFound,
    RtlangError,
    ServerUnreachable,
    Unsupported,
)
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.tokenizer import Tokenizer
from rtlang.runtime.tokenizer_files import fetched

logger = logging.getLogger(__name__)

#: Where nobody follows the text, an event holds so many tokens.
INTERVAL = 16
#: Seconds that a server gets to answer a question beside the requests.
ASIDE_S = 5.0


class HTTP:
    """Implements ``Backend``: ``rt.HTTP("http://localhost:30000")``. Many programs may share one.

    Ids go over the wire both ways, so token counts, forks, scores and seeds are those of the
    engine behind the server. The model's tokenizer is fetched when it is first needed, and kept
    in a cache on the disk. A context manager; ``close`` drops the connections.
    """

    capabilities = Capabilities()

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        connect_timeout: float = 10.0,
        retries: int = 3,
        verify: bool | str | ssl.SSLContext = True,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """``timeout``: the longest silence of the server, in seconds; a request that waits in its
        queue is silent. ``retries``: of requests that have certainly done nothing. ``verify``:
        of TLS certificates: False, or a file with those to trust. ``tokenizer``: the model's, to
        be used instead of asking the server for it. Raises ``ConfigError``."""
        self._connection = Connection(
            url,
            {} if api_key is None else {"authorization": f"Bearer {api_key}"},
            rtlang_error,
            timeout=timeout,
            connect_timeout=connect_timeout,
            retries=retries,
            verify=verify,
        )
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        #: Forks whose prefix is being computed: their branches wait for it here, not there, so
        #: that none of them comes to the server before its announcement.
        self._announced: dict[str, asyncio.Event] = {}
        self._asides: set[asyncio.Future[None]] = set()

    def __repr__(self) -> str:
        return f"HTTP({self._connection.url!r})"

    def __enter__(self) -> HTTP:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Say what is still to be said, and drop the connections. Not from the loop's thread."""
        loop.submit(self._aclose()).result()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own; the first use asks the server, and waits. Raises what the server
        answers, ``ServerUnreachable``, or ``ModelLoadError`` for files that cannot be read."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = fetched(
                    self._description(),
                    lambda name: self._connection.call(f"/tokenizer_files/{name}"),
                )
            return self._tokenizer

    def start(self, call: Call) -> Stream:
        rid = uuid.uuid4().hex
        interval = call.params.stream_interval
        body = body_of(call, rid, interval=interval if call.stream else max(INTERVAL, interval))
        return self._stream(call, body)

    def announce(
        self,
        input_ids: Sequence[int],
        branches: int,
        *,
        namespace: str = "",
        priority: int = 0,
    ) -> tuple[str, Stream]:
        fork_id = uuid.uuid4().hex
        call = Call(
            input_ids=input_ids,
            params=SamplingParams(max_new_tokens=0),
            fork_id=fork_id,
            namespace=namespace,
            priority=priority,
        )
        body = body_of(call, uuid.uuid4().hex, interval=1) | {"announce": branches}
        self._announced[fork_id] = asyncio.Event()
        return fork_id, self._stream(call, body)

    def close_branches(self, fork_id: str, count: int) -> None:
        loop.spawn(lambda: self._close_branches(fork_id, count))

    def flush_cache(self) -> None:
        self._connection.call("/flush_cache", {})

    def _description(self) -> dict[str, Any]:
        """Of the model's tokenizer."""
        try:
            answer = self._connection.call("/tokenizer_files")
            return msgspec.json.decode(answer, type=dict[str, Any])
        except (NotFound, msgspec.DecodeError) as error:
            url = self._connection.url
            raise ConfigError(f"{url} is no rtlang server: {error}; see rtlang.OpenAI") from error
        except Unsupported as error:
            hint = f"{error.message}: give HTTP(..., tokenizer=...) the model's own"
            raise Unsupported(hint, param="tokenizer") from error

    # -- in the background loop ---------------------------------------------------------------

    def _stream(self, call: Call, body: dict[str, Any]) -> RemoteStream:
        sent: list[bool] = []
        rid: str = body["rid"]

        async def ask_to_end() -> bool:
            return bool(sent) and await self._abort(rid)

        def on_end() -> None:
            if "announce" in body:
                self._announced.pop(call.fork_id).set()

        until = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        return RemoteStream(rid, self._chunks(call, body, until, sent), ask_to_end, on_end)

    async def _chunks(
        self, call: Call, body: dict[str, Any], until: float | None, sent: list[bool]
    ) -> AsyncGenerator[Chunk, None]:
        """``until``: the call's deadline on the monotonic clock."""
        if "announce" not in body:
            await self._wait_for_prefix(call.fork_id, until)
        if until is not None:
            body["timeout"] = _left(until)
        sent.append(True)
        complete = False
        async with contextlib.aclosing(
            self._connection.events("/generate", body, until=until)
        ) as events:
            async for data in events:
                if data != b"[DONE]":
                    chunk = _read(data, call)
                    complete = chunk.finish is not None
                    yield chunk
                # Read to the end, so that the connection can be used again.
        if not complete:
            url = self._connection.url
            raise ServerUnreachable(f"{url}: the answer ended in the middle", sent=True)

    async def _wait_for_prefix(self, fork_id: str, until: float | None) -> None:
        event = self._announced.get(fork_id)
        if event is None:
            return
        try:
            await asyncio.wait_for(event.wait(), None if until is None else _left(until))
        except TimeoutError as error:
            raise _too_late() from error

    async def _abort(self, rid: str) -> bool:
        try:
            await self._aside("/abort_request", {"rid": rid})
        except RtlangError as error:
            logger.warning("request %s could not be aborted: %s", rid, error)
            return False
        return True

    async def _close_branches(self, fork_id: str, count: int) -> None:
        try:
            await self._wait_for_prefix(fork_id, None)
            await self._aside("/close_branches", {"fork_id": fork_id, "count": count})
        except RtlangError as error:  # the server lets go of the prefix by itself, only later
            logger.warning("branches of fork %s could not be closed: %s", fork_id, error)

    async def _aside(self, path: str, body: dict[str, Any]) -> None:
        """Say something beside the requests; ``close`` waits until it is said."""
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asides.add(sent)
        try:
            await self._connection.post(path, body, timeout=ASIDE_S)
        finally:
            self._asides.discard(sent)
            sent.set_result(None)

    async def _aclose(self) -> None:
        while waited_for := [*self._asides, *(e.wait() for e in self._announced.values())]:
            await asyncio.gather(*waited_for)
        await self._connection.aclose()


def _read(data: bytes, call: Call) -> Chunk:
    try:
        event = decode_event(data)
    except msgspec.DecodeError as error:
        raise EngineError(f"the server's answer is not understood: {error}") from error
    if event.error is not None:
        raise rtlang_error_of(event.error)
    return chunk_of(event, call.logprobs)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise _too_late()
    return left


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("the request's time was over before it was sent", text="")
