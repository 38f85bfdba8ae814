"""An answer in the shape of OpenAI's Responses API, at once or as typed events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from rtlang.errors import RtlangError
from rtlang.runtime.messages import FinishReason, TokenLogprobs, Usage
from rtlang.runtime.parsers.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Reasoning,
)
from rtlang.runtime.server.generation import new_id
from rtlang.runtime.server.http_errors import status_of
from rtlang.runtime.server.replies import named_event
from rtlang.runtime.server.responses_logprobs import TextLogprobs
from rtlang.runtime.server.turns import Turn, count_reasoning

_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}
#: Their text part, and the events of its deltas.
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


class _Item:
    """One output item as it grows. ``call``: its index in the answer, of a function call."""

    __slots__ = ("call", "id", "kind", "logprobs", "parts", "rest", "status")

    def __init__(self, kind: str, call: int | None = None, **rest: Any) -> None:
        self.id = new_id(_PREFIXES[kind])
        self.kind = kind
        self.call = call
        self.rest = rest
        self.status = "in_progress"
        self.parts: list[str] = []
        self.logprobs: list[Any] = []

    def head(self) -> dict[str, Any]:
        return {"id": self.id, "type": self.kind, "status": self.status, **self.rest}

    def begun(self) -> dict[str, Any]:
        """As ``output_item.added`` shows it."""
        if self.kind == "function_call":
            return {**self.head(), "arguments": ""}
        return {**self.head(), "content": []}

    def part(self, text: str) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": list(self.logprobs),
        }

    def whole(self) -> dict[str, Any]:
        text = "".join(self.parts)
        if self.kind == "function_call":
            return {**self.head(), "arguments": text}
        return {**self.head(), "content": [self.part(text)]}


class ResponseWriter:
    """Turns the events of one answer into output items, and into the stream's typed events.

    A call that went on as no JSON is dropped from the output (its text follows as text; a stream
    has shown its beginning by then). One that the end has cut stays, as incomplete.
    """

    def __init__(
        self, echo: dict[str, Any], turn: Turn, logprobs: TextLogprobs | None = None
    ) -> None:
        """``echo``: the request's own values, as every state of the response repeats them.
        ``logprobs``: where those of the text are wanted."""
        self.id = new_id("resp_")
        self.turn = turn
        self._echo = echo
        self._logprobs = logprobs
        self._created = int(time.time())
        self._items: list[_Item] = []
        self._open: _Item | None = None
        self._number = 0

    # -- the response -----------------------------------------------------------------------

    def response(self, status: str, **more: Any) -> dict[str, Any]:
        """``status``: completed | incomplete | in_progress | failed | cancelled."""
        kept = {id(call) for call in self.turn.calls}
        output = [
            item.whole()
            for item in self._items
            if item.call is None or id(self.turn.call(item.call)) in kept
        ]
        known = {"error": None, "incomplete_details": None, "completed_at": None, "usage": None}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            **known,
            **self._echo,
            "output": output,
            **more,
        }

    def finished(self, finish: FinishReason, usage: dict[str, Any]) -> dict[str, Any]:
        """When all events were fed and ``close`` was called."""
        if finish.type == "length":
            reason = {"reason": "max_output_tokens"}
            return self.response("incomplete", incomplete_details=reason, usage=usage)
        return self.response("completed", completed_at=int(time.time()), usage=usage)

    def answer(self) -> dict[str, Any]:
        """As a message, for the conversation's next turn; calls that were cut are left out."""
        message: dict[str, Any] = {"role": "assistant", "content": self.turn.content}
        if self.turn.reasoning:
            message["reasoning_content"] = self.turn.reasoning
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in self.turn.calls
            if call.complete
        ]
        return {**message, "tool_calls": calls} if calls else message

    def usage(self, usage: Usage, token_bytes: Sequence[bytes], ids: Sequence[int]) -> Any:
        """``ids``: all that were generated, with the bytes of each of the vocabulary."""
        thoughts = count_reasoning(token_bytes, ids, self.turn)
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": thoughts},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    # -- the stream -------------------------------------------------------------------------

    def begin(self) -> bytes:
        shown = self.response("in_progress")
        created = self._event("response.created", response=shown)
        return created + self._event("response.in_progress", response=shown)

    def feed(self, events: Iterable[Event], logprobs: Sequence[TokenLogprobs] | None) -> bytes:
        """The stream's part for these. ``logprobs``: of the tokens that have just come."""
        if self._logprobs is not None and logprobs:
            self._logprobs.add(logprobs)
        parts: list[bytes] = []
        for event in events:
            self.turn.feed((event,))
            parts += self._one(event)
        return b"".join(parts)

    def close(self, finish: FinishReason) -> bytes:
        """End what is open. An answer of nothing has an empty message."""
        parts: list[bytes] = []
        if not self._items:
            parts = self._begin(_Item("message", role="assistant"))
        return b"".join([*parts, *self._close(cut=finish.type == "length")])

    def end(self, response: dict[str, Any]) -> bytes:
        """``response``: what ``finished`` has made."""
        return self._event(f"response.{response['status']}", response=response)

    def failed(self, error: RtlangError) -> bytes:
        """Instead of the end."""
        told = {"code": error_code(error), "message": error.message}
        shown = self.response("failed", error=told)
        event = self._event("error", code=error.code, message=error.message, param=None)
        return event + self._event("response.failed", response=shown)

    def _one(self, event: Event) -> list[bytes]:
        match event:
            case Content(text):
                return self._text("message", text, role="assistant")
            case Reasoning(text):
                return self._text("reasoning", text, summary=[])
            case CallBegin(index, name):
                call_id = self.turn.call(index).id
                return self._begin(_Item("function_call", index, call_id=call_id, name=name))
            case CallArguments(_, text):
                assert self._open is not None
                self._open.parts.append(text)
                if self._logprobs is not None:
                    self._logprobs.take(text)
                kind = "response.function_call_arguments.delta"
                return [self._event(kind, **self._where(self._open), delta=text)]
            case CallEnd(index):
                return self._close()

    def _text(self, kind: str, text: str, **rest: Any) -> list[bytes]:
        begun: list[bytes] = []
        if self._open is None or self._open.kind != kind:
            begun = self._begin(_Item(kind, **rest))
        item = self._open
        assert item is not None
        item.parts.append(text)
        entries = self._logprobs.take(text) if self._logprobs is not None else []
        more: dict[str, Any] = {}
        if kind == "message":
            item.logprobs += entries
            more["logprobs"] = entries
        name = f"response.{_PARTS[kind]}.delta"
        return [*begun, self._event(name, **self._where(item, 0), delta=text, **more)]

    def _begin(self, item: _Item) -> list[bytes]:
        parts = self._close()
        self._open = item
        self._items.append(item)
        added = "response.output_item.added"
        parts.append(self._event(added, output_index=self._at, item=item.begun()))
        if item.call is None:
            where = self._where(item, 0)
            parts.append(self._event("response.content_part.added", **where, part=item.part("")))
        return parts

    def _close(self, *, cut: bool = False) -> list[bytes]:
        """``cut``: by the end of the generation, at its limit."""
        item = self._open
        if item is None:
            return []
        self._open = None
        broken = item.call is not None and not self.turn.call(item.call).complete
        item.status = "incomplete" if cut or broken else "completed"
        text = "".join(item.parts)
        parts: list[bytes] = []
        if item.call is not None:
            name = "response.function_call_arguments.done"
            where = self._where(item)
            parts.append(self._event(name, **where, name=item.rest["name"], arguments=text))
        else:
            where = self._where(item, 0)
            more = {"logprobs": list(item.logprobs)} if item.kind == "message" else {}
            done = f"response.{_PARTS[item.kind]}.done"
            parts.append(self._event(done, **where, text=text, **more))
            part = item.part(text)
            parts.append(self._event("response.content_part.done", **where, part=part))
        last = "response.output_item.done"
        parts.append(self._event(last, output_index=self._at, item=item.whole()))
        return parts

    @property
    def _at(self) -> int:
        return len(self._items) - 1

    def _where(self, item: _Item, content_index: int | None = None) -> dict[str, Any]:
        where: dict[str, Any] = {"item_id": item.id, "output_index": self._at}
        return where if content_index is None else {**where, "content_index": content_index}

    def _event(self, kind: str, **payload: Any) -> bytes:
        number = self._number
        self._number += 1
        return named_event(kind, {"type": kind, "sequence_number": number, **payload})


def error_code(error: RtlangError) -> str:
    """One of the API's own."""
    status = status_of(error)
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if status < 500 else "server_error"
