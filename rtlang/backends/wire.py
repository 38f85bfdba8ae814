"""A call as the server's `/generate` takes it, and what comes back, with nothing lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from rtlang.backends.base import Call
from rtlang.grammar.spec import GrammarSpec
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import FinishReason, LogprobOptions, TokenLogprobs, Usage
from rtlang.runtime.sampling_params import SamplingParams

#: (log-probability, token id, its text)
Item = tuple[float | None, int, str | None]


class Finish(msgspec.Struct):
    type: str
    matched: int | str | None = None
    detail: str = ""


class Meta(msgspec.Struct):
    """``meta_info`` of an event. The lists of log-probabilities are of this event alone."""

    finish_reason: Finish | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    recomputed_tokens: int = 0
    num_retractions: int = 0
    kept_ids: int = 0
    kept_text: str = ""
    output_token_logprobs: list[Item] = []
    output_top_logprobs: list[list[Item] | None] = []
    output_token_ids_logprobs: list[list[Item] | None] = []
    input_token_logprobs: list[Item] = []
    input_top_logprobs: list[list[Item] | None] = []
    input_token_ids_logprobs: list[list[Item] | None] = []
    next_token_ids_logprobs: list[Item] = []


class Event(msgspec.Struct):
    """One event of a stream: a piece of the answer, or the error that ended it."""

    text: str = ""
    output_ids: list[int] = []
    meta_info: Meta = msgspec.field(default_factory=Meta)
    error: dict[str, Any] | None = None


decode_event = msgspec.json.Decoder(Event).decode


def body_of(call: Call, rid: str, *, interval: int) -> dict[str, Any]:
    """The request's body, but for its timeout. ``interval``: tokens between two events."""
    body: dict[str, Any] = {
        "input_ids": list(call.input_ids),
        "sampling_params": sampling_of(call.params) | {"stream_interval": interval},
        "rid": rid,
        "stream": True,
        "incremental": True,
        "chat": call.chat,
        "choice": call.choice,
        "priority": call.priority,
    }
    if call.namespace:
        body["extra_key"] = call.namespace
    if call.fork_id:
        body["fork_id"] = call.fork_id
    if call.logprobs is not None:
        body |= {
            "return_logprob": True,
            "logprob_start_len": call.logprobs.start_len,
            "top_logprobs_num": call.logprobs.top_num,
            "token_ids_logprob": list(call.logprobs.token_ids),
        }
    return body


def sampling_of(params: SamplingParams) -> dict[str, Any]:
    """As ``SamplingParams.parse`` takes them: what is None is left out, but for the length."""
    given = {name: getattr(params, name) for name in params.__struct_fields__}
    given = {k: v for k, v in given.items() if v is not None or k == "max_new_tokens"}
    if params.grammar is not None:
        given["grammar"] = constraint_of(params.grammar)
    return given


def constraint_of(spec: GrammarSpec) -> dict[str, Any]:
    """As ``GrammarSpec.of`` takes it, which makes an equal one of it."""
    source = json.loads(spec.source) if spec.kind == "choice" else spec.source
    given: dict[str, Any] = {spec.kind: source}
    if spec.kind in ("json_schema", "structural_tag"):
        given |= {"whitespace": spec.whitespace, "additional": spec.additional}
    return given


def chunk_of(event: Event, logprobs: LogprobOptions | None) -> Chunk:
    meta, finish = event.meta_info, event.meta_info.finish_reason
    chunk = Chunk(text=event.text, token_ids=event.output_ids)
    if logprobs is not None:
        chunk.logprobs = _entries(
            meta.output_token_logprobs, meta.output_top_logprobs, meta.output_token_ids_logprobs
        )
        chunk.prompt_logprobs = _entries(
            meta.input_token_logprobs, meta.input_top_logprobs, meta.input_token_ids_logprobs
        )
        if meta.next_token_ids_logprobs:
            values = _values(meta.next_token_ids_logprobs)
            chunk.prompt_logprobs.append(TokenLogprobs(-1, None, [], values))
    if finish is not None:
        chunk.finish = FinishReason(finish.type, finish.matched, finish.detail)
        chunk.usage = Usage(**{name: getattr(meta, name) for name in Usage.__struct_fields__})
        chunk.kept_ids, chunk.kept_text = meta.kept_ids, meta.kept_text
    return chunk


def _entries(
    items: Sequence[Item],
    tops: Sequence[list[Item] | None],
    ids: Sequence[list[Item] | None],
) -> list[TokenLogprobs]:
    """``tops`` and ``ids`` are empty where they were not asked for."""
    return [
        TokenLogprobs(
            token,
            logprob,
            [(t, v) for v, t, _ in (tops[at] or ()) if v is not None] if tops else [],
            _values(ids[at] or ()) if ids else [],
        )
        for at, (logprob, token, _) in enumerate(items)
    ]


def _values(items: Sequence[Item]) -> list[float]:
    return [value for value, _, _ in items if value is not None]
