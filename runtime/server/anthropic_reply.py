"""An answer in the shape of Anthropic's Messages API, at once or as events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import from_json

from rtlang.errors import RtlangError
from rtlang.runtime.messages import FinishReason, Usage
from rtlang.runtime.parsers.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Reasoning,
)
from rtlang.runtime.server.generation import new_id
from rtlang.runtime.server.http_errors import anthropic_body
from rtlang.runtime.server.replies import named_event
from rtlang.runtime.server.turns import Turn, count_reasoning, finish_reason

#: Of thinking blocks. Clients want one and send it back; nothing is signed, nobody checks it.
SIGNATURE = "cnRsYW5n"


class _Block:
    """One content block as it grows; ``call``: its index in the answer, of a tool's use."""

    __slots__ = ("call", "head", "parts")

    def __init__(self, head: dict[str, Any], call: int | None) -> None:
        self.head = head  # as its content_block_start shows it
        self.call = call
        self.parts: list[str] = []

    def whole(self) -> dict[str, Any]:
        text = "".join(self.parts)
        kind = self.head["type"]
        if kind == "tool_use":
            return {**self.head, "input": _input(text)}
        if kind == "thinking":
            return {**self.head, "thinking": text, "signature": SIGNATURE}
        return {**self.head, "text": text}


class MessageWriter:
    """Turns the events of one answer into content blocks, and into the stream's events.

    A call that went on as no JSON is dropped from the message (its text follows as text; a
    stream has shown its beginning by then). One that the end has cut stays, with what its
    arguments held by then; ``stop_reason`` tells.
    """

    def __init__(self, model: str, turn: Turn, *, show_thinking: bool) -> None:
        """``show_thinking``: the text of thoughts, not only that there were some."""
        self._head = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": model}
        self._turn = turn
        self._show_thinking = show_thinking
        self._blocks: list[_Block] = []
        self._is_open = False

    def message(self, finish: FinishReason, usage: dict[str, Any]) -> dict[str, Any]:
        """The whole answer, when all events were fed."""
        kept = {id(call) for call in self._turn.calls}
        content = [
            block.whole()
            for block in self._blocks
            if block.call is None or id(self._turn.call(block.call)) in kept
        ]
        return {**self._head, "content": content, **self._stop(finish), "usage": usage}

    def begin(self, prompt_tokens: int) -> bytes:
        """How many of them were cached is known at the end: ``message_delta`` says it."""
        usage = usage_of(Usage(prompt_tokens=prompt_tokens))
        nothing = {"stop_reason": None, "stop_sequence": None}
        message: dict[str, Any] = {**self._head, "content": [], **nothing, "usage": usage}
        return _event("message_start", message=message)

    def feed(self, events: Iterable[Event]) -> bytes:
        """The stream's part for these."""
        parts: list[bytes] = []
        for event in events:
            self._turn.feed((event,))
            parts += self._one(event)
        return b"".join(parts)

    def end(self, finish: FinishReason, usage: dict[str, Any]) -> bytes:
        delta = _event("message_delta", delta=self._stop(finish), usage=usage)
        return b"".join([*self._close(), delta, _event("message_stop")])

    def usage(self, usage: Usage, token_bytes: Sequence[bytes], ids: Sequence[int]) -> Any:
        """``ids``: all that were generated, with the bytes of each of the vocabulary."""
        thoughts = count_reasoning(token_bytes, ids, self._turn)
        return {**usage_of(usage), "output_tokens_details": {"thinking_tokens": thoughts}}

    def _one(self, event: Event) -> list[bytes]:
        match event:
            case Content(text):
                opened = self._open({"type": "text", "text": ""})
                return [*opened, self._delta("text_delta", "text", text)]
            case Reasoning(text):
                opened = self._open({"type": "thinking", "thinking": "", "signature": ""})
                shown = text if self._show_thinking else ""
                return [*opened, self._delta("thinking_delta", "thinking", shown)]
            case CallBegin(index, name):
                call_id = self._turn.call(index).id.replace("call_", "toolu_", 1)
                head = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                return self._open(head, call=index)
            case CallArguments(_, text):
                return [self._delta("input_json_delta", "partial_json", text)]
            case CallEnd():
                return self._close()

    def _open(self, head: dict[str, Any], *, call: int | None = None) -> list[bytes]:
        """Nothing, where a block of this kind is open."""
        if self._is_open and call is None and self._blocks[-1].head["type"] == head["type"]:
            return []
        closed = self._close()
        self._is_open = True
        self._blocks.append(_Block(head, call))
        return [*closed, _event("content_block_start", index=self._at, content_block=head)]

    def _close(self) -> list[bytes]:
        if not self._is_open:
            return []
        self._is_open = False
        stop = _event("content_block_stop", index=self._at)
        if self._blocks[-1].head["type"] != "thinking":
            return [stop]
        return [self._event_delta({"type": "signature_delta", "signature": SIGNATURE}), stop]

    def _delta(self, kind: str, name: str, text: str) -> bytes:
        self._blocks[-1].parts.append(text)
        return self._event_delta({"type": kind, name: text}) if text else b""

    def _event_delta(self, delta: dict[str, str]) -> bytes:
        return _event("content_block_delta", index=self._at, delta=delta)

    @property
    def _at(self) -> int:
        return len(self._blocks) - 1

    def _stop(self, finish: FinishReason) -> dict[str, str | None]:
        reason, sequence = finish_reason(finish, self._turn), None
        if reason == "length":
            context = finish.detail == "context"
            reason = "model_context_window_exceeded" if context else "max_tokens"
        elif reason == "tool_calls":
            reason = "tool_use"
        elif finish.detail == "string":
            reason, sequence = "stop_sequence", str(finish.matched)
        else:
            reason = "end_turn"
        return {"stop_reason": reason, "stop_sequence": sequence}


def usage_of(usage: Usage) -> dict[str, Any]:
    """What was read from the cache is no part of ``input_tokens`` there. Whatever is computed is
    cached, at no price: the creation of cache entries is not counted."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def error_event(error: RtlangError) -> bytes:
    return named_event("error", anthropic_body(error))


def _event(kind: str, **payload: Any) -> bytes:
    return named_event(kind, {"type": kind, **payload})


def _input(text: str) -> dict[str, Any]:
    """The arguments as an object; of a call that was cut, what there is of them."""
    if not text.strip():
        return {}
    try:
        found = from_json(text, allow_partial=True)
    except ValueError:  # half a character, as an escape; what cannot be told becomes "?"
        try:
            told = json.dumps(json.loads(text), ensure_ascii=False).encode(errors="replace")
        except ValueError:  # cut besides
            return {}
        found = from_json(told)
    return found if isinstance(found, dict) else {}
