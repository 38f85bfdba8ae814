"""Caller: a state's requests to the backend, from start to end."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

from rtlang.backends.base import Backend, Call, Stream
from rtlang.errors import DeadlineExceeded, RtlangError
from rtlang.run import Run
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import Usage
from rtlang.runtime.result import GenerateResult, collect
from rtlang.usage import CallUsage

OnText = Callable[[str], None]


class Branch:
    """One branch's share in an announced fork: its first request takes it, or it is closed.

    Thread-safe; exactly one of the two happens.
    """

    def __init__(self, backend: Backend, fork_id: str) -> None:
        self._backend = backend
        self._fork_ids = [fork_id]  # popped by whoever comes first

    def take(self) -> str:
        """The fork id, once; "" after that."""
        try:
            return self._fork_ids.pop()
        except IndexError:
            return ""

    def close(self) -> None:
        fork_id = self.take()
        if fork_id:
            self._backend.close_branches(fork_id, 1)


class Caller:
    """Used by one task at a time, except for ``stop``, which may come from any thread."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.branch: Branch | None = None
        self._streams: set[Stream] = set()
        self._stopped: BaseException | None = None

    def stop(self, reason: BaseException) -> None:
        """Abort what runs; what would start raises ``reason``."""
        with self._run.signal.lock:
            self._stopped = reason
            streams = list(self._streams)
        for stream in streams:
            stream.abort()

    def close(self) -> None:
        if self.branch is not None:
            self.branch.close()

    async def all(
        self,
        calls: Sequence[Call],
        entries: Sequence[CallUsage],
        on_text: OnText | None = None,
    ) -> list[GenerateResult]:
        """Send all requests at once; their results in order. ``on_text`` gets the first one's
        text, piece by piece. The first error aborts the others and is raised."""
        streams: list[Stream] = []
        try:
            for call in calls:
                streams.append(self._start(call))
            if len(streams) == 1:
                return [await self.read(streams[0], entries[0], on_text)]
            tasks = [
                asyncio.ensure_future(self.read(stream, entry, None if i else on_text))
                for i, (stream, entry) in enumerate(zip(streams, entries, strict=True))
            ]
            try:
                return list(await asyncio.gather(*tasks))
            except BaseException:
                for stream in streams:
                    stream.abort()
                await asyncio.gather(*tasks, return_exceptions=True)
                raise
        except BaseException:
            for stream in streams:
                stream.abort()
            raise

    async def read(
        self, stream: Stream, entry: CallUsage, on_text: OnText | None = None
    ) -> GenerateResult:
        """A started request to its end; ``entry`` gets its counts, however it ends."""
        self._add(stream)
        chunks: list[Chunk] = []
        try:
            async for chunk in stream:
                chunks.append(chunk)
                if chunk.text and on_text is not None:
                    on_text(chunk.text)
        except RtlangError as error:
            entry.tokens = error.data.get("usage")
            if isinstance(error, DeadlineExceeded):
                error.data.setdefault("text", "".join(c.text for c in chunks))
            raise
        finally:
            stream.abort()  # nothing to do for one that has ended
            with self._run.signal.lock:
                self._streams.discard(stream)
        last = chunks[-1]
        entry.tokens = last.usage
        if last.usage is None:  # the server did not tell: no count of the result is read then
            last.usage = Usage()
        return collect(chunks)

    def _start(self, call: Call) -> Stream:
        if self._stopped is not None:
            raise self._stopped
        fork_id = self.branch.take() if self.branch is not None else ""
        try:
            stream = self._run.backend.start(dataclasses.replace(call, fork_id=fork_id))
        except BaseException:
            if fork_id:
                self._run.backend.close_branches(fork_id, 1)
            raise
        self._add(stream)
        return stream

    def _add(self, stream: Stream) -> None:
        with self._run.signal.lock:
            self._streams.add(stream)
            stopped = self._stopped
        if stopped is not None:
            stream.abort()
