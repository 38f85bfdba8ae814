"""Generation: the requests of one HTTP call, from their admission to the last chunk."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request

from rtlang.errors import (
    DuplicateRequestId,
    EngineError,
    InvalidParameter,
    NotAllowed,
    RequestAborted,
    RtlangError,
)
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.job import Ask, Job
from rtlang.runtime.messages import Timings, Usage
from rtlang.runtime.result import GenerateResult, collect
from rtlang.runtime.server.body import check_count
from rtlang.runtime.server.keys import Principal
from rtlang.runtime.server.record import CallRecord, now
from rtlang.runtime.server.replies import aborting
from rtlang.runtime.server.state import ServerState, own_name, principal_of

logger = logging.getLogger(__name__)

_numbers = itertools.count()

#: Characters of an id that a caller gives.
MAX_RID_LEN = 256


class Generation:
    """Sent together, read as one stream, counted once. Made by ``start``.

    Whoever started it reads it (``chunks`` or ``results``) to its end, or leaves the iteration:
    either way every request ends, and limits and sinks hear of it.
    """

    def __init__(self, state: ServerState, principal: Principal, record: CallRecord) -> None:
        self.record = record
        self._state = state
        self._principal = principal
        self._job: Job | None = None
        self._rids: dict[str, int | None] = {}  # ours: which of the prompts it names
        self._last: dict[tuple[int, int], float] = {}  # sequence -> time of its last chunk
        self._num_left = record.num_sequences  # that have not ended
        self._settling: asyncio.Task[None] | None = None
        self._failure: RtlangError | None = None  # what ``fail`` gave
        self._ended = False

    @classmethod
    async def start(
        cls,
        state: ServerState,
        request: Request,
        asks: Sequence[Ask],
        *,
        model: str,
        stream: bool,
        rids: Sequence[str] = (),
        prompt: str = "",
    ) -> Generation:
        """``model``: the name that the client used. ``rids``: the caller's own ids, one for the
        whole call or one for each prompt, by which it can be aborted. ``prompt``: for operators.

        Raises what refuses the call: ``ServerUnavailable``, ``RateLimited``, ``NotAllowed``,
        ``DuplicateRequestId``, or a ``RequestError`` of the engine. Nothing was sent then.
        """
        engine = state.accepting()
        principal = principal_of(request.scope)
        num_sequences = sum(ask.params.n for ask in asks)
        check_count(num_sequences)
        if not principal.operator and any(ask.options.priority > 0 for ask in asks):
            raise NotAllowed("a priority above 0 needs an operator's key", param="priority")
        record = CallRecord(
            request_id=request.scope["state"]["request_id"],
            route=request.scope["state"]["route"],
            key=principal.name,
            model=model,
            stream=stream,
            num_sequences=num_sequences,
            received=request.scope["state"]["received"],
            prompt=prompt if state.config.log_prompts else "",
            params=asks[0].params,
            traceparent=request.headers.get("traceparent", ""),
            tracestate=request.headers.get("tracestate", ""),
        )
        self = cls(state, principal, record)
        self._name(rids, len(asks))
        for rid in self._rids:  # before anything is waited for: no other call takes the ids
            state.enter(rid, self)
        try:
            await state.limiter.enter(principal, sum(len(ask.ids) for ask in asks))
        except BaseException:
            for rid in self._rids:
                state.leave(rid)
            raise
        request.scope["state"].setdefault("generations", []).append(self)
        try:
            if self._failure is not None:  # aborted meanwhile
                raise self._failure
            asks = [_with_limits(ask, principal, state) for ask in asks]
            self._job = engine.submit(asks, stream=stream)
        except Exception as error:
            self._end(error if isinstance(error, RtlangError) else EngineError("internal error"))
            raise
        record.sent = now()
        state.tell("started", record)
        return self

    def _name(self, rids: Sequence[str], num_prompts: int) -> None:
        """Raises ``DuplicateRequestId``, and ``InvalidParameter`` for an id that is too long."""
        assert len(rids) in (0, 1, num_prompts), (len(rids), num_prompts)
        whole = len(rids) != num_prompts or num_prompts == 1
        names: dict[str, int | None] = {}
        for at, rid in enumerate(rids):
            if len(rid) > MAX_RID_LEN:
                raise InvalidParameter(f"a rid has at most {MAX_RID_LEN} characters", param="rid")
            name = own_name(self._principal.name, rid)
            if name in self._state.running or name in names:
                raise DuplicateRequestId(f"a request with the id {rid!r} is running", param="rid")
            names[name] = None if whole else at
        self._rids = names or {f"{self.record.request_id}#{next(_numbers)}": None}

    def abort(self, rid: str | None = None) -> None:
        """End all of it, or what ``rid`` (see ``own_name``) names. From the event loop."""
        if self._job is None:
            self._failure = self._failure or RequestAborted("it was aborted")
        else:
            self._job.abort(None if rid is None else self._rids.get(rid))

    def fail(self, error: RtlangError) -> None:
        """Its reader gets ``error``, whatever the scheduler says or does not say. From the event
        loop."""
        if self._failure is not None or self._ended:
            return
        self._failure = error
        if self._job is not None:
            self._job.fail(error)

    def close(self) -> None:
        """The call is over: what still runs of it is aborted. Does nothing after ``chunks`` has
        ended, or was left."""
        if self._job is not None:
            self._leave(RequestAborted("nobody reads the answer"))

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Chunks of all sequences as they come; ``index`` and ``choice`` tell whose. Raises the
        first error of any of them, which ends the others."""
        assert self._job is not None
        error: RtlangError | None = RequestAborted("the client left")
        try:
            async for chunk in self._job.aiterate():
                self._note(chunk)
                yield chunk
            error = None
        except RtlangError as raised:
            error = raised
            if raised is not self._failure:
                self._count_failed(raised)
            raise
        finally:
            self._leave(error)

    def _leave(self, error: RtlangError | None) -> None:
        """Nobody reads any more. What still runs is aborted, and heard to its end."""
        assert self._job is not None
        self._job.abort()
        if self._ended or self._settling is not None:
            return
        if self._num_left and self._state.engine.is_alive and not self._state.is_stalled:
            self._settling = asyncio.create_task(self._settle(error))
        else:
            self._end(error)

    async def _settle(self, error: RtlangError | None) -> None:
        """The aborted rest still tells what it has cost; a scheduler that is stuck does not."""
        assert self._job is not None
        try:
            async with asyncio.timeout(self._state.config.stall_timeout_s):
                while self._num_left:
                    item = await self._job.atake()
                    if item is self._failure:  # nobody will confirm anything
                        break
                    if isinstance(item, RtlangError):
                        self._count_failed(item)
                    elif item.finish is not None:
                        self._count(item.usage, item.timings)
        except TimeoutError:
            logger.warning("request %s: its end was not confirmed", self.record.request_id)
        finally:
            self._end(error)

    async def results(self, request: Request) -> list[list[GenerateResult]]:
        """All, by prompt and choice. The client's leaving aborts it."""
        parts: dict[tuple[int, int], list[Chunk]] = {}
        async with aborting(request, self.abort):
            async for chunk in self.chunks():
                parts.setdefault((chunk.index, chunk.choice), []).append(chunk)
        results: list[list[GenerateResult]] = []
        for index, choice in sorted(parts):
            if choice == 0:
                results.append([])
            results[index].append(collect(parts[index, choice]))
        return results

    def _note(self, chunk: Chunk) -> None:
        record, time = self.record, now()
        key = (chunk.index, chunk.choice)
        before = self._last.get(key)
        self._last[key] = time
        if chunk.token_ids:
            record.first_token = record.first_token or time
        if chunk.finish is not None:
            self._count(chunk.usage, chunk.timings)
            record.finish_reasons.append(chunk.finish.type)
        if self._state.config.log_prompts:
            record.text += chunk.text
        self._state.tell("tokens", record, chunk, None if before is None else time - before)

    def _count_failed(self, error: RtlangError) -> None:
        self._count(error.data.get("usage"), error.data.get("timings"))

    def _count(self, usage: Usage | None, timings: Timings | None) -> None:
        """One sequence has ended; nothing is known of it if the scheduler died or was stuck."""
        self._num_left -= 1
        if usage is not None:
            self.record.usage = self.record.usage + usage
        if timings is not None:
            self.record.timings.append(timings)

    def _end(self, error: RtlangError | None) -> None:
        if self._ended:
            return
        self._ended = True
        for rid in self._rids:
            self._state.leave(rid)
        record = self.record
        record.finished, record.error = now(), error
        self._state.limiter.leave(self._principal, record.usage.completion_tokens)
        self._state.tell("ended", record)


def _with_limits(ask: Ask, principal: Principal, state: ServerState) -> Ask:
    """With the key's cache namespace and the server's own timeout."""
    options, limit = ask.options, state.config.request_timeout_s
    changes: dict[str, Any] = {}
    if principal.salt:
        own = f"key:{len(principal.salt)}:{principal.salt}"
        changes["namespace"] = f"{own}/{options.namespace}"
    if limit is not None:
        given = options.timeout_s
        changes["timeout_s"] = limit if given is None else min(given, limit)
    if not changes:
        return ask
    return dataclasses.replace(ask, options=dataclasses.replace(options, **changes))


def new_id(prefix: str) -> str:
    """Of an answer or a call in it: the prefix and 24 random hexadecimal digits."""
    return prefix + uuid.uuid4().hex[:24]
