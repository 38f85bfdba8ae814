"""TextBackend: what backends have in common that speak in messages, and know no token ids."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

from rtlang import loop
from rtlang.backends.answers import api_error
from rtlang.backends.base import Call, Capabilities, Stream
from rtlang.backends.connection import Connection
from rtlang.backends.remote_stream import RemoteStream
from rtlang.errors import DeadlineExceeded, Unsupported
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.tokenizer import Tokenizer


class TextBackend:
    """Implements ``Backend`` for calls with ``messages``. Subclasses say what a request is and
    read its answer, in ``_chunks``. A context manager; ``close`` drops the connections."""

    def __init__(
        self,
        model: str,
        url: str,
        headers: dict[str, str],
        *,
        sampling: frozenset[str],
        check: Callable[[SamplingParams], None],
        prefill: bool,
        extra_body: Mapping[str, Any] | None,
        **options: Any,
    ) -> None:
        """``options``: those of ``Connection``; the others of ``Capabilities``, by their names."""
        self.model = model
        self.capabilities = Capabilities(
            token_ids=False,
            score=False,
            fork=False,
            prefill=prefill,
            logprobs=False,
            sampling=sampling,
            check=check,
        )
        self._connection = Connection(url, headers, api_error, **options)
        self._extra_body = dict(extra_body or {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, base_url={self._connection.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connections. Not from the loop's thread."""
        loop.submit(self._connection.aclose()).result()

    @property
    def tokenizer(self) -> Tokenizer:
        self._refuse("has no tokenizer", "tokenizer")

    def start(self, call: Call) -> Stream:
        source = self._chunks(call)
        if call.timeout_s is not None:
            source = _in_time(source, call.timeout_s)
        return RemoteStream(uuid.uuid4().hex, source)

    def announce(
        self,
        input_ids: Sequence[int],
        branches: int,
        *,
        namespace: str = "",
        priority: int = 0,
    ) -> tuple[str, Stream]:
        self._refuse("announces no prefixes", "fork_id")

    def close_branches(self, fork_id: str, count: int) -> None:
        self._refuse("announces no prefixes", "fork_id")

    def flush_cache(self) -> None:
        self._refuse("has no cache of yours", "flush_cache")

    def _chunks(self, call: Call) -> AsyncGenerator[Chunk, None]:
        """Text of the answer as it comes; the last chunk has ``finish`` and ``usage``."""
        raise NotImplementedError

    def _refuse(self, why: str, param: str) -> NoReturn:
        raise Unsupported(f"{type(self).__name__} {why}", param=param)


async def _in_time(
    source: AsyncGenerator[Chunk, None], seconds: float
) -> AsyncGenerator[Chunk, None]:
    """``source``, cut off with ``DeadlineExceeded``: these servers know no deadlines."""
    until = time.monotonic() + seconds
    async with contextlib.aclosing(source):
        while True:
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    chunk = await anext(source)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise DeadlineExceeded(f"no answer within {seconds} s") from error
            yield chunk
