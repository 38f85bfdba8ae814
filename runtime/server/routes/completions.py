"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from rtlang.runtime.chunk import Chunk
from rtlang.runtime.job import Ask
from rtlang.runtime.messages import FinishReason, TokenLogprobs
from rtlang.runtime.result import GenerateResult
from rtlang.runtime.server.generation import Generation, new_id
from rtlang.runtime.server.protocol.aside import aside
from rtlang.runtime.server.protocol.completion import CompletionBody
from rtlang.runtime.server.protocol.counts import Counts
from rtlang.runtime.server.protocol.logprobs import (
    CompletionLogprobs,
    num_shown,
    prompt_entries,
)
from rtlang.runtime.server.protocol.sampling import client_names
from rtlang.runtime.server.protocol.sse import ChunkWriter, error_event
from rtlang.runtime.server.replies import DONE, EventStream, Json, to_json
from rtlang.runtime.server.state import server_of
from rtlang.runtime.tokenizer import Tokenizer

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request, body: CompletionBody) -> Response:
    state = server_of(request)
    model = state.check_model(body.model)
    body.check()
    tokenizer = state.engine.tokenizer
    with client_names(n="n" if body.best_of is None else "best_of"):
        pairs = await aside(request, body.asks, tokenizer)
        asks = [ask for _, ask in pairs]
        generation = await Generation.start(
            state,
            request,
            asks,
            model=model,
            stream=bool(body.stream),
            rids=[] if body.rid is None else [body.rid],
            prompt="\n".join(text or "" for text, _ in pairs),
        )
    head = {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()),
            "model": model}  # fmt: skip
    writer = _Writer(tokenizer, body, pairs)
    if body.stream:
        events = writer.events(generation, head)
        return await EventStream.open(request, events, generation.abort, error_event)
    results = await generation.results(request)
    choices = [
        writer.whole(result, number)
        for siblings in results
        for number, result in enumerate(_best(siblings, body))
    ]
    for result in (r for siblings in results for r in siblings):  # those not shown, too
        writer.count(result)
    return Json({**head, "choices": choices, "usage": writer.counts.payload()})


def _best(siblings: list[GenerateResult], body: CompletionBody) -> list[GenerateResult]:
    """The n of ``best_of`` with the highest mean log-probability, the best one first."""
    if not body.ranks:
        return siblings
    return sorted(siblings, key=_mean_logprob, reverse=True)[: body.num_choices]


def _mean_logprob(result: GenerateResult) -> float:
    values = [entry.logprob or 0.0 for entry in result.logprobs or ()]
    return sum(values) / len(values) if values else 0.0


class _Writer:
    """Puts chunks and results into the shape of ``/v1/completions``."""

    def __init__(
        self, tokenizer: Tokenizer, body: CompletionBody, asks: Sequence[tuple[str | None, Ask]]
    ) -> None:
        """``asks``: with each prompt's text, None where it was ids."""
        self._tokenizer = tokenizer
        self._body = body
        self._asks = asks
        self._columns: dict[int, CompletionLogprobs] = {}
        self.counts = Counts([len(ask.ids) for _, ask in asks])

    def count(self, result: GenerateResult) -> None:
        self.counts.add_tokens(len(result.token_ids))
        self.counts.ended(result.index, result.usage)

    def whole(self, result: GenerateResult, number: int) -> dict[str, Any]:
        """``number``: of the choice among those of its prompt."""
        at = result.index * self._body.num_choices + number
        choice = self._fields(
            at,
            result.index,
            self._echo(result.index) + result.text,
            result.logprobs,
            result.prompt_logprobs,
            result.finish_reason,
        )
        top = self._body.prompt_logprobs
        if top is not None:
            known = [e for e in result.prompt_logprobs or () if e.token_id >= 0]
            choice["prompt_logprobs"] = prompt_entries(self._tokenizer, known, top)
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = list(self._asks[result.index][1].ids)
            choice["token_ids"] = result.token_ids
        return {"index": at, **choice}

    async def events(
        self, generation: Generation, head: Mapping[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        body, counts = self._body, self.counts
        writer = ChunkWriter(head, usage=body.wants_usage)
        begins: dict[int, bytes] = {}
        end = b',"logprobs":null,"finish_reason":null' + writer.end()
        plain = body.logprobs is None and not (body.return_token_ids or body.wants_running_usage)
        async for chunk in generation.chunks():
            counts.add_tokens(len(chunk.token_ids))
            at = chunk.index * body.num_choices + chunk.choice
            begin = begins.get(at)
            if plain and begin is not None and chunk.finish is None:
                if chunk.text:
                    yield begin + b'"text":' + to_json(chunk.text) + end
                continue
            first = begin is None
            begin = begins.setdefault(at, writer.begin(at))
            if chunk.finish is not None:
                assert chunk.usage is not None
                counts.ended(chunk.index, chunk.usage)
            fields = self._piece(at, chunk, first=first)
            if fields is not None:
                usage = counts.payload() if body.wants_running_usage else None
                yield begin + to_json(fields)[1:-1] + writer.end(usage)
        if body.wants_usage:
            yield writer.totals(counts.payload())
        yield DONE

    def _piece(self, at: int, chunk: Chunk, *, first: bool) -> dict[str, Any] | None:
        """None: there is nothing to tell yet."""
        text = self._echo(chunk.index) + chunk.text if first else chunk.text
        fields = self._fields(
            at, chunk.index, text, chunk.logprobs, chunk.prompt_logprobs, chunk.finish
        )
        told = text or fields["logprobs"] is not None or chunk.finish is not None
        if self._body.return_token_ids:
            fields["token_ids"] = chunk.token_ids
            if first:
                fields["prompt_token_ids"] = list(self._asks[chunk.index][1].ids)
            told = True
        return fields if told else None

    def _fields(
        self,
        at: int,
        index: int,
        text: str,
        logprobs: Sequence[TokenLogprobs] | None,
        prompt_logprobs: Sequence[TokenLogprobs] | None,
        finish: FinishReason | None,
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {"text": text, "logprobs": None, "finish_reason": None}
        if self._body.logprobs is not None:
            shown = num_shown(len(logprobs or ()), finish, self._asks[index][1].params)
            entries = list(logprobs or ())[:shown]
            if self._body.echo:
                entries = [e for e in prompt_logprobs or () if e.token_id >= 0] + entries
            if entries or finish is not None:
                fields["logprobs"] = self._columns_of(at, index).columns(entries)
        if finish is not None:
            fields["finish_reason"] = "length" if finish.type == "length" else "stop"
            fields["matched_stop"] = finish.matched
        return fields

    def _columns_of(self, at: int, index: int) -> CompletionLogprobs:
        if at not in self._columns:
            skip = self._asks[index][1].params.skip_special_tokens
            self._columns[at] = CompletionLogprobs(
                self._tokenizer, self._body.logprobs or 0, skip_special_tokens=skip
            )
        return self._columns[at]

    def _echo(self, index: int) -> str:
        """The prompt, where it is to be repeated. Of truncated ones and of ids: their text."""
        if not self._body.echo:
            return ""
        text, ask = self._asks[index]
        if text is None or self._body.truncate_prompt_tokens is not None:
            skip = ask.params.skip_special_tokens
            return self._tokenizer.decode(ask.ids, skip_special_tokens=skip)
        return text
