"""One ``Engine.generate`` call: which requests it makes, and how their results come together."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rtlang.errors import InvalidParameter, InvalidPrompt, RtlangError
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import LogprobOptions
from rtlang.runtime.result import GenerateResult, collect
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.stream import ChunkQueue, EngineStream, wake

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What a request may ask besides its prompt and its sampling parameters."""

    logprobs: LogprobOptions | None = None
    rid: str | None = None
    priority: int = 0
    timeout_s: float | None = None
    namespace: str = ""
    fork_id: str = ""
    announce: int = 0
    chat_template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> CallOptions:
        """From the keyword arguments of ``generate``; raises ``InvalidParameter``."""
        given = dict(options)
        wants = given.pop("return_logprob", False)
        logprobs = LogprobOptions(
            start_len=given.pop("logprob_start_len", -1),
            top_num=given.pop("top_logprobs_num", 0),
            token_ids=tuple(given.pop("token_ids_logprob", None) or ()),
        )
        if not wants and logprobs != LogprobOptions():
            raise InvalidParameter(
                "logprob options need return_logprob=True", param="return_logprob"
            )
        salt = given.pop("cache_salt", None)
        if salt == "":
            raise InvalidParameter("cache_salt must not be empty", param="cache_salt")
        known = {
            "timeout_s": given.pop("timeout", None),
            "rid": given.pop("rid", None),
            "priority": given.pop("priority", 0),
            "chat_template_kwargs": given.pop("chat_template_kwargs", None) or {},
        }
        if given:
            name = next(iter(given))
            raise InvalidParameter(f"generate has no option {name!r}", param=name)
        return cls(
            logprobs=logprobs if wants else None,
            namespace="" if salt is None else f"salt:{salt}",
            **known,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """One prompt of a call. ``chat``: the model's chat defaults apply."""

    ids: Sequence[int]
    params: SamplingParams
    options: CallOptions
    chat: bool = False


def split_prompts(prompts: Any) -> tuple[list[Any], bool]:
    """(prompts, is a batch). One prompt is a text, a list of ids, or a list of messages."""
    if isinstance(prompts, str):
        return [prompts], False
    if not isinstance(prompts, Sequence):
        raise InvalidPrompt(f"a prompt is text, ids or messages, not {type(prompts).__name__}")
    if not prompts:
        raise InvalidPrompt("the prompt is empty")
    is_batch = isinstance(prompts[0], str | list | tuple)
    return (list(prompts), True) if is_batch else ([prompts], False)


def split_params(params: Any, count: int) -> list[SamplingParams]:
    """One for each prompt. Raises ``InvalidParameter`` where a list has another length."""
    if not isinstance(params, list | tuple):
        return [SamplingParams.parse(params)] * count
    if len(params) != count:
        raise InvalidParameter(
            f"{len(params)} sampling_params for {count} prompts", param="sampling_params"
        )
    return [SamplingParams.parse(p) for p in params]


class Job:
    """The requests of one call, running; their chunks come through one queue."""

    def __init__(
        self, queue: ChunkQueue, streams: list[EngineStream], *, is_batch: bool, ns: list[int]
    ) -> None:
        """``ns``: siblings of each prompt."""
        self._queue = queue
        self._streams = streams
        self._is_batch = is_batch
        self._ns = ns

    def abort(self, index: int | None = None) -> None:
        """``index``: only the requests of that prompt."""
        for stream in self._streams:
            if index is None or stream.index == index:
                stream.abort()

    def fail(self, error: RtlangError) -> None:
        """Whoever reads the chunks gets those that have come, then ``error``. For a scheduler
        that does not answer: the requests are aborted when it hears of it."""
        waiter = self._queue.put(error)
        wake([waiter] if waiter is not None else [])
        self.abort()

    def iterate(self) -> Iterator[Chunk]:
        """Chunks of all requests as they come. Raises the first error, or (left early, or dropped
        before its first chunk) aborts what still runs."""
        return self._aborting(self._iterate())

    def aiterate(self) -> AsyncIterator[Chunk]:
        return self._aborting(self._aiterate())

    def _aborting(self, chunks: T) -> T:
        # A generator that was never started runs no ``finally`` when it goes.
        weakref.finalize(chunks, self.abort).atexit = False
        return chunks

    def _iterate(self) -> Iterator[Chunk]:
        try:
            for _ in self._left():
                while (chunk := self._queue.get()).finish is None:
                    yield chunk
                yield chunk
        finally:
            self.abort()

    async def _aiterate(self) -> AsyncIterator[Chunk]:
        try:
            for _ in self._left():
                while (chunk := await self._queue.aget()).finish is None:
                    yield chunk
                yield chunk
        finally:
            self.abort()

    async def atake(self) -> Chunk | RtlangError:
        """What comes next, of whichever request: for who left the iteration and wants to know how
        the requests end. It must know that something comes."""
        return await self._queue.atake()

    def gather(self) -> list[Chunk | RtlangError]:
        """Everything, until all requests have ended; errors as items."""
        items: list[Chunk | RtlangError] = []
        try:
            for _ in self._left():
                while not _is_last(item := self._queue.take()):
                    items.append(item)
                items.append(item)
        except BaseException:
            self.abort()
            raise
        return items

    async def agather(self) -> list[Chunk | RtlangError]:
        items: list[Chunk | RtlangError] = []
        try:
            for _ in self._left():
                while not _is_last(item := await self._queue.atake()):
                    items.append(item)
                items.append(item)
        except BaseException:
            self.abort()
            raise
        return items

    def results(self, items: list[Chunk | RtlangError], *, raise_errors: bool) -> Any:
        """Results in the shape of the call: one, a list, or lists of n."""
        chunks: dict[tuple[int, int], list[Chunk]] = {}
        done: dict[tuple[int, int], GenerateResult | RtlangError] = {}
        for item in items:
            if isinstance(item, RtlangError):
                if raise_errors:
                    raise item
                done[item.index or 0, item.data.get("choice", 0)] = item
                continue
            key = (item.index, item.choice)
            chunks.setdefault(key, []).append(item)
            if item.finish is not None:
                done[key] = collect(chunks[key])
        shaped: list[Any] = []
        for index, n in enumerate(self._ns):
            siblings = [done[index, choice] for choice in range(n)]
            shaped.append(siblings if n > 1 else siblings[0])
        return shaped if self._is_batch else shaped[0]

    def _left(self) -> range:
        return range(len(self._streams))


def _is_last(item: Chunk | RtlangError) -> bool:
    return isinstance(item, RtlangError) or item.finish is not None
