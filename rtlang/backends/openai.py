"""OpenAI: any server with OpenAI's chat completions as a backend of programs with roles."""

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
from rtlang.errors import EngineError, ServerUnreachable
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import FinishReason, Usage
from rtlang.runtime.sampling.seeds import derive_seed
from rtlang.runtime.sampling_params import SamplingParams

OFFICIAL_URL = "https://api.openai.com/v1"
#: Our names of what goes into the body as it is, and OpenAI's.
_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
}
_SUPPORTED = frozenset({*_NAMES, "max_new_tokens", "stop", "sampling_seed", "grammar"})


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    # Two names of the same; no server sends both with different texts.
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def thoughts(self) -> str:
        return self.reasoning_content or self.reasoning or ""


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Event).decode


class OpenAI(TextBackend):
    """``rt.OpenAI("gpt-…")``, or with a ``base_url`` such as ``"http://localhost:30000/v1"``.

    Programs need roles, and an answer is all of its turn. Constraints are JSON schemas, and types
    that are written as JSON; the server enforces them. Token counts are the server's, None where
    it tells none. Reasoning that it tells apart is in the meta info, and in no text.
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
        (``OPENAI_API_KEY``). ``timeout``: the longest silence of the server, in seconds.
        ``extra_body``: fields of this server's own, for every request. Raises ``ConfigError``."""
        self._official = base_url is None
        if api_key is None and self._official:
            api_key = os.environ.get("OPENAI_API_KEY")
        super().__init__(
            model,
            base_url or OFFICIAL_URL,
            {"authorization": f"Bearer {api_key}"} if api_key else {},
            sampling=_SUPPORTED,
            check=json_schemas_only,
            prefill=False,
            extra_body=extra_body,
            timeout=timeout,
            connect_timeout=connect_timeout,
            retries=retries,
            verify=verify,
        )

    def models(self) -> list[str]:
        """Names of the models that the server has. Asks it, and waits."""
        try:
            found = msgspec.json.decode(self._connection.call("/models"), type=_Models)
        except msgspec.DecodeError as error:
            raise EngineError(f"the server's answer is not understood: {error}") from error
        return [model.id for model in found.data]

    def body_of(self, call: Call) -> dict[str, Any]:
        """The request's body."""
        params = call.params
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(call.messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for ours, theirs in _NAMES.items():
            value = getattr(params, ours)
            if value is not None and value != _DEFAULTS.get(ours):
                body[theirs] = value
        if params.max_new_tokens is not None:
            # OpenAI's newer models refuse the older name, which all other servers know.
            name = "max_completion_tokens" if self._official else "max_tokens"
            body[name] = params.max_new_tokens
        if params.stop:
            body["stop"] = list(params.stop)
        if params.sampling_seed is not None:
            body["seed"] = derive_seed(params.sampling_seed, call.choice)
        if params.grammar is not None:
            schema = {"name": "answer", "strict": True, "schema": schema_of(params.grammar)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body | self._extra_body

    async def _chunks(self, call: Call) -> AsyncGenerator[Chunk, None]:
        finish, refusal = "", ""
        usage: _Usage | None = None
        events = self._connection.events("/chat/completions", self.body_of(call))
        async with contextlib.aclosing(events):
            async for data in events:
                if data == b"[DONE]":
                    continue  # to the end, so that the connection can be used again
                event = _read(data)
                usage = event.usage or usage
                for choice in event.choices:
                    finish = choice.finish_reason or finish
                    refusal += choice.delta.refusal or ""
                    text, thoughts = choice.delta.content or "", choice.delta.thoughts
                    if text or thoughts:
                        yield Chunk(text=text, token_ids=[], reasoning=thoughts)
        if not finish:
            url = self._connection.url
            raise ServerUnreachable(f"{url}: the answer ended in the middle", sent=True)
        if refusal:
            raise EngineError(f"the model refused: {refusal}")
        yield Chunk(
            text="",
            token_ids=[],
            finish=_finish_reason(finish, call.params),
            usage=None if usage is None else _counted(usage),
        )


#: Sent only where it was changed: some models refuse even a penalty of 0.
_DEFAULTS = {"frequency_penalty": 0.0, "presence_penalty": 0.0}


def _read(data: bytes) -> _Event:
    try:
        event = _decode(data)
    except msgspec.DecodeError as error:
        raise EngineError(f"the server's answer is not understood: {error}") from error
    if event.error is not None:
        raise api_error_of(event.error)
    return event


def _finish_reason(finish: str, params: SamplingParams) -> FinishReason:
    if finish == "length":
        return FinishReason("length", None, "max_new_tokens")
    if finish != "stop":
        raise EngineError(f"the answer ended with {finish!r}")
    # The API does not tell a stop string from the model's own end.
    return FinishReason("stop", None, "string" if params.stop else "eos")


def _counted(usage: _Usage) -> Usage:
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens if details is not None else None) or 0
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=cached,
        computed_tokens=usage.prompt_tokens - cached,
        completion_tokens=usage.completion_tokens,
    )
