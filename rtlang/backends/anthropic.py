"""Anthropic: any server with Anthropic's messages as a backend of programs with roles."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from rtlang.backends.answers import api_error_of
from rtlang.backends.base import Call
from rtlang.backends.json_format import json_schemas_only, schema_of
from rtlang.backends.text import TextBackend
from rtlang.errors import (
    EngineError,
    InvalidPrompt,
    ServerUnavailable,
    ServerUnreachable,
    Unsupported,
)
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import FinishReason, Usage
from rtlang.runtime.sampling_params import SamplingParams

OFFICIAL_URL = "https://api.anthropic.com"
_VERSION = "2023-06-01"
_SUPPORTED = frozenset({"max_new_tokens", "stop", "temperature", "top_p", "top_k", "grammar"})


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(msgspec.Struct):
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    message: _Message = msgspec.field(default_factory=_Message)
    delta: _Delta = msgspec.field(default_factory=_Delta)
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Event).decode


class Anthropic(TextBackend):
    """``rt.Anthropic("claude-…")``, or with a ``base_url`` such as ``"http://localhost:30000"``.

    Programs need roles, with system turns before all others. Each call needs a ``max_tokens``;
    the temperature is at most 1. Whether an answer may begin with text of yours depends on the
    model. Constraints are JSON schemas, and types that are written as JSON. Token counts are the
    server's. What the model thinks (``extra_body={"thinking": …}``) is in the meta info, and in no
    text.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 600.0,
        connect_timeout: float = 10.0,
        retries: int = 3,
        verify: bool | str | ssl.SSLContext = True,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """``api_key``: without one and without a ``base_url``, that of the environment
        (``ANTHROPIC_API_KEY``). ``timeout``: the longest silence of the server, in seconds.
        ``extra_body``: fields of this server's own, for every request. Raises ``ConfigError``."""
        if api_key is None and base_url is None:
            api_key = os.environ.get("ANTHROPIC_API_KEY")
        headers = {"anthropic-version": _VERSION} | ({"x-api-key": api_key} if api_key else {})
        super().__init__(
            model,
            base_url or OFFICIAL_URL,
            headers,
            sampling=_SUPPORTED,
            check=_check,
            prefill=True,
            extra_body=extra_body,
            timeout=timeout,
            connect_timeout=connect_timeout,
            retries=retries,
            verify=verify,
        )

    def body_of(self, call: Call) -> dict[str, Any]:
        """The request's body. Raises ``InvalidPrompt`` for a system turn behind another."""
        params = call.params
        turns = list(call.messages)
        system: list[str] = []
        while turns and turns[0]["role"] == "system":
            system.append(turns.pop(0)["content"])
        if any(turn["role"] == "system" for turn in turns):
            raise InvalidPrompt("Anthropic takes system turns before all others only")
        body: dict[str, Any] = {
            "model": self.model,
            "messages": turns,
            "max_tokens": params.max_new_tokens,
            "stream": True,
        }
        if system:
            body["system"] = "\n\n".join(system)
        for name in ("temperature", "top_p"):
            if getattr(params, name) is not None:
                body[name] = getattr(params, name)
        if params.top_k is not None and params.top_k > 0:
            body["top_k"] = params.top_k
        if params.stop:
            body["stop_sequences"] = list(params.stop)
        if params.grammar is not None:
            form = {"type": "json_schema", "schema": schema_of(params.grammar)}
            body["output_config"] = {"format": form}
        return body | self._extra_body

    async def _chunks(self, call: Call) -> AsyncGenerator[Chunk, None]:
        usage, end, complete = _Usage(), _Delta(), False
        events = self._connection.events("/v1/messages", self.body_of(call))
        async with contextlib.aclosing(events):
            async for data in events:
                event = _read(data)
                match event.type:
                    case "message_start":
                        usage = event.message.usage
                    case "content_block_delta":
                        text, thoughts = event.delta.text, event.delta.thinking
                        if text or thoughts:
                            yield Chunk(text=text, token_ids=[], reasoning=thoughts)
                    case "message_delta":
                        end = event.delta
                        usage = _later(usage, event.usage)
                    case "message_stop":
                        complete = True
        if not complete:
            url = self._connection.url
            raise ServerUnreachable(f"{url}: the answer ended in the middle", sent=True)
        yield Chunk(text="", token_ids=[], finish=_finish_reason(end), usage=_counted(usage))


def _check(params: SamplingParams) -> None:
    json_schemas_only(params)
    if params.max_new_tokens is None:
        raise Unsupported("Anthropic needs a max_tokens for every call", param="max_tokens")
    if params.temperature is not None and params.temperature > 1:
        raise Unsupported(
            f"Anthropic takes temperatures up to 1, not {params.temperature}", param="temperature"
        )


def _read(data: bytes) -> _Event:
    try:
        event = _decode(data)
    except msgspec.DecodeError as error:
        raise EngineError(f"the server's answer is not understood: {error}") from error
    if event.error is not None:
        if event.error.get("type") == "overloaded_error":
            raise ServerUnavailable(f"the server says: {event.error.get('message')}")
        raise api_error_of(event.error)
    return event


def _later(before: _Usage, now: _Usage | None) -> _Usage:
    """Counts of the end, which are of the whole; those that it does not tell, as before."""
    if now is None:
        return before
    told = {k: v for k in _Usage.__struct_fields__ if (v := getattr(now, k)) is not None}
    return msgspec.structs.replace(before, **told)


def _finish_reason(end: _Delta) -> FinishReason:
    match end.stop_reason:
        case "end_turn":
            return FinishReason("stop", None, "eos")
        case "stop_sequence":
            return FinishReason("stop", end.stop_sequence, "string")
        case "max_tokens":
            return FinishReason("length", None, "max_new_tokens")
        case "model_context_window_exceeded":
            return FinishReason("length", None, "context")
        case "refusal":
            raise EngineError("the model refused")
    raise EngineError(f"the answer ended with {end.stop_reason!r}")


def _counted(usage: _Usage) -> Usage | None:
    """The API counts tokens read from a cache, written to it, and others apart. None where it was
    not told."""
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    cached = usage.cache_read_input_tokens or 0
    computed = usage.input_tokens + (usage.cache_creation_input_tokens or 0)
    return Usage(
        prompt_tokens=cached + computed,
        cached_tokens=cached,
        computed_tokens=computed,
        completion_tokens=usage.output_tokens,
    )
