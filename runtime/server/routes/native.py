"""POST /generate: SGLang's own JSON, with the fields that our language needs beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from typing import Any, ClassVar

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from rtlang.errors import InvalidParameter, InvalidPrompt, RtlangError
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.job import Ask, CallOptions, split_params
from rtlang.runtime.messages import FinishReason, TokenLogprobs, Usage
from rtlang.runtime.sampling.seeds import derive_seed
from rtlang.runtime.server.body import Body, check_count
from rtlang.runtime.server.generation import Generation
from rtlang.runtime.server.http_errors import openai_body
from rtlang.runtime.server.protocol.aside import aside
from rtlang.runtime.server.protocol.sampling import call_options
from rtlang.runtime.server.record import now
from rtlang.runtime.server.replies import DONE, EventStream, Json, data_event
from rtlang.runtime.server.state import ServerState, server_of

router = APIRouter()

#: Of one announced fork.
MAX_BRANCHES = 1_000_000

NOT_BUILT = {
    name: f"{what} not built"
    for what, names in {
        "embeddings as prompts are": ("input_embeds",),
        "images, audio and video are": ("image_data", "audio_data", "video_data"),
        "hidden states are": ("return_hidden_states", "return_entropy"),
        "sessions are": ("session_id", "session_params"),
        "adapters are": ("lora_path",),
        "custom logit processors are": ("custom_logit_processor",),
        "routing is": ("routing_key", "routed_dp_rank"),
        "disaggregation is": ("bootstrap_host", "bootstrap_port", "bootstrap_room"),
        "thinking limits are": ("max_thinking_tokens", "require_reasoning"),
        "background requests are": ("background",),
        "KV hints are": ("kv_hints",),
    }.items()
    for name in names
}


class GenerateBody(Body):
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset(
        {"conversation_id", "custom_labels", "no_logs", "log_metrics"}
    )
    NOT_BUILT: ClassVar[dict[str, str]] = NOT_BUILT

    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    stream: bool = False
    incremental: bool = Field(False, description="stream deltas, not the whole text so far")
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    token_ids_logprob: list[int] | None = None
    return_text_in_logprobs: bool | None = None
    return_prompt_token_ids: bool | None = None
    rid: str | list[str] | None = None
    priority: int | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    model: str | None = None
    timeout: float | None = Field(None, description="seconds from arrival")
    # What rtlang's own language says; see docs/server.md.
    chat: bool = Field(False, description="the model's chat defaults apply")
    choice: int = Field(0, ge=0, description="which of n siblings of one seed this is")
    fork_id: str | None = Field(None, description="a branch of the fork announced under this id")
    announce: int | None = Field(
        None, ge=1, le=MAX_BRANCHES, description="announce fork_id with so many branches"
    )


@router.post("/generate")
@router.put("/generate", include_in_schema=False)
async def generate(request: Request, body: GenerateBody) -> Response:
    state = server_of(request)
    model = state.check_model(body.model)
    asks, is_batch = await aside(request, _asks, state, body)
    rids = [body.rid] if isinstance(body.rid, str) else body.rid or []
    if len(rids) not in (0, 1, len(asks)):
        raise InvalidParameter(f"{len(rids)} rids for {len(asks)} prompts", param="rid")
    generation = await Generation.start(
        state, request, asks, model=model, stream=body.stream, rids=rids, prompt=str(body.text)
    )
    writer = _Writer(state, body, asks, generation, numbered=is_batch or asks[0].params.n > 1)
    if body.stream:
        events = writer.events()
        return await EventStream.open(request, events, generation.abort, _error_event)
    results = await generation.results(request)
    flat = [
        writer.payload(
            r.text, r.token_ids, r.index, r.choice, finish=r.finish_reason, usage=r.usage,
            logprobs=r.logprobs, prompt_logprobs=r.prompt_logprobs, kept=(r.kept_ids, r.kept_text),
        )
        for siblings in results
        for r in siblings
    ]  # fmt: skip
    return Json(flat if writer.numbered else flat[0])


def _error_event(error: RtlangError) -> bytes:
    return data_event(openai_body(error)) + DONE


def _asks(state: ServerState, body: GenerateBody) -> tuple[list[Ask], bool]:
    """One for each prompt, and whether the prompts were a list."""
    if (body.text is None) == (body.input_ids is None):
        raise InvalidPrompt("give one of text and input_ids", param="text")
    given: Any = body.text if body.text is not None else body.input_ids
    is_batch = isinstance(given, list) and (not given or not isinstance(given[0], int))
    prompts: list[Any] = given if is_batch else [given]
    if not prompts or prompts == [[]]:
        raise InvalidPrompt("the prompt is empty", param="text")
    check_count(len(prompts))
    if body.text is not None:
        prompts = [state.engine.tokenizer.encode(text) for text in prompts]
    params = split_params(_checked(body.sampling_params), len(prompts))
    if body.choice:
        params = [
            msgspec.structs.replace(p, sampling_seed=derive_seed(p.sampling_seed, body.choice))
            if p.sampling_seed is not None
            else p
            for p in params
        ]
    options = _options(body, len(prompts))
    return [
        Ask(ids, p, options, body.chat) for ids, p in zip(prompts, params, strict=True)
    ], is_batch


def _checked(given: Any) -> Any:
    """Raises ``InvalidParameter`` for a ``choice`` that is no list."""
    for params in given if isinstance(given, list) else [given or {}]:
        if not isinstance(params.get("choice"), list | None):
            raise InvalidParameter("choice is a list of texts", param="choice")
    return given


def _options(body: GenerateBody, num_prompts: int) -> CallOptions:
    names = ("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob")
    rest = ("cache_salt", "priority", "timeout")
    options = call_options(body.given(*names, *rest), body.extra_key)
    changes: dict[str, Any] = {}
    if body.announce is not None and (not body.fork_id or num_prompts > 1):
        raise InvalidParameter("announce needs a fork_id, and one prompt", param="announce")
    if body.fork_id is not None:
        changes |= {"fork_id": body.fork_id, "announce": body.announce or 0}
    return dataclasses.replace(options, **changes)


class _Writer:
    """Puts chunks and results into the shape of ``/generate``."""

    def __init__(
        self,
        state: ServerState,
        body: GenerateBody,
        asks: list[Ask],
        generation: Generation,
        *,
        numbered: bool,
    ) -> None:
        self._tokenizer = state.engine.tokenizer if body.return_text_in_logprobs else None
        self._body = body
        self._asks = asks
        self._record = generation.record
        self._generation = generation
        self._firsts = [0]
        for ask in asks:
            self._firsts.append(self._firsts[-1] + ask.params.n)
        self.numbered = numbered

    async def events(self) -> AsyncGenerator[bytes, None]:
        whole: dict[int, tuple[list[str], list[int], list[TokenLogprobs], list[TokenLogprobs]]] = {}
        counts: dict[int, int] = {}
        async for chunk in self._generation.chunks():
            at = self._firsts[chunk.index] + chunk.choice
            parts = whole.setdefault(at, ([], [], [], []))
            if self._body.incremental:
                parts = whole[at] = ([], [], [], [])
            parts[0].append(chunk.text)
            parts[1].extend(chunk.token_ids)
            parts[2].extend(chunk.logprobs or ())
            parts[3].extend(chunk.prompt_logprobs or ())
            counts[at] = counts.get(at, 0) + len(chunk.token_ids)
            yield data_event(self._event(chunk, at, counts[at], *parts))
        yield DONE

    def _event(
        self,
        chunk: Chunk,
        at: int,
        count: int,
        texts: list[str],
        ids: list[int],
        logprobs: list[TokenLogprobs],
        prompt_logprobs: list[TokenLogprobs],
    ) -> dict[str, Any]:
        payload = self.payload(
            "".join(texts), ids, chunk.index, chunk.choice, finish=chunk.finish, usage=chunk.usage,
            logprobs=logprobs, prompt_logprobs=prompt_logprobs,
            kept=(chunk.kept_ids, chunk.kept_text), count=count,
        )  # fmt: skip
        if self.numbered:
            payload["index"] = at
        return payload

    def payload(
        self,
        text: str,
        ids: list[int],
        index: int,
        choice: int,
        *,
        finish: FinishReason | None,
        usage: Usage | None,
        logprobs: list[TokenLogprobs] | None,
        prompt_logprobs: list[TokenLogprobs] | None,
        kept: tuple[int, str],
        count: int | None = None,
    ) -> dict[str, Any]:
        """One sequence's answer, whole or so far. ``count``: of all tokens so far, where ``ids``
        are only the last ones."""
        count = len(ids) if count is None else count
        ask, record = self._asks[index], self._record
        meta: dict[str, Any] = {
            "id": self._name(index, choice),
            "finish_reason": None if finish is None else _finish(finish, count),
            "prompt_tokens": len(ask.ids),
            "completion_tokens": count,
            "weight_version": "default",
        }
        if usage is not None:
            meta |= _usage(usage)
            meta |= {"kept_ids": kept[0], "kept_text": kept[1]}
            end = now()
            meta["e2e_latency"] = end - record.received
            first = record.first_token
            meta["first_token_latency"] = None if first is None else first - record.received
        if ask.options.logprobs is not None:
            meta |= self._logprobs(logprobs or [], prompt_logprobs or [])
        payload: dict[str, Any] = {"text": text, "output_ids": ids, "meta_info": meta}
        if self._body.return_prompt_token_ids:
            payload["prompt_token_ids"] = list(ask.ids)
        return payload

    def _name(self, index: int, choice: int) -> str:
        rid = self._body.rid
        name = rid[index] if isinstance(rid, list) and len(rid) > 1 else rid
        if not isinstance(name, str):
            name = name[0] if name else self._record.request_id
        several = self._asks[index].params.n > 1
        return f"{name}_{choice}" if several else name

    def _logprobs(self, output: list[TokenLogprobs], prompt: list[TokenLogprobs]) -> dict[str, Any]:
        found: dict[str, Any] = {"output_token_logprobs_length": len(output)}
        wanted = self._asks[0].options.logprobs
        assert wanted is not None
        sides = {"output": output}
        if wanted.start_len >= 0:
            sides["input"] = [entry for entry in prompt if entry.token_id >= 0]
        for side, entries in sides.items():
            found[f"{side}_token_logprobs"] = [self._item(e.logprob, e.token_id) for e in entries]
            if wanted.top_num:
                found[f"{side}_top_logprobs"] = [
                    [self._item(value, i) for i, value in e.top] if e.top else None for e in entries
                ]
            if wanted.token_ids:
                found[f"{side}_token_ids_logprobs"] = [
                    [self._item(v, i) for i, v in zip(wanted.token_ids, e.ids, strict=True)]
                    if e.ids
                    else None
                    for e in entries
                ]
        nexts = [e for e in prompt if e.token_id < 0]  # what would come after the prompt
        if nexts:
            found["next_token_ids_logprobs"] = [
                self._item(v, i) for i, v in zip(wanted.token_ids, nexts[0].ids, strict=True)
            ]
        return found

    def _item(self, logprob: float | None, token_id: int) -> list[Any]:
        text = None
        if self._tokenizer is not None:
            text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return [logprob, token_id, text]


def _finish(finish: FinishReason, num_tokens: int) -> dict[str, Any]:
    if finish.type == "length":
        return {"type": "length", "length": num_tokens, "detail": finish.detail}
    return {"type": finish.type, "matched": finish.matched, "detail": finish.detail}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "cached_tokens_details": {"device": usage.cached_tokens, "host": 0, "storage": 0},
        "computed_tokens": usage.computed_tokens,
        "forced_tokens": usage.forced_tokens,
        "recomputed_tokens": usage.recomputed_tokens,
        "num_retractions": usage.num_retractions,
        "reasoning_tokens": 0,
    }
