"""Turn: one choice's answer as it grows, put together from its parser's events."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Sequence

from rtlang.runtime.messages import FinishReason
from rtlang.runtime.parsers.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Reasoning,
)
from rtlang.runtime.server.generation import new_id

_ALPHANUMERIC = string.ascii_letters + string.digits


def new_call_id() -> str:
    return new_id("call_")


def new_short_call_id() -> str:
    """Nine letters and digits: what Mistral's templates take back."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


class Call:
    """One tool call. ``complete``: it has ended, so its arguments are one JSON object."""

    __slots__ = ("_parts", "complete", "id", "name")

    def __init__(self, call_id: str, name: str) -> None:
        self.id = call_id
        self.name = name
        self.complete = False
        self._parts: list[str] = []

    def __repr__(self) -> str:
        return f"Call({self.id!r}, {self.name!r}, {self.arguments!r})"

    @property
    def arguments(self) -> str:
        """JSON text; only its beginning until the call is complete."""
        return "".join(self._parts)

    def add(self, text: str) -> None:
        self._parts.append(text)


class Turn:
    """Collects the events of one choice. ``short_ids``: of calls, as Mistral's templates want.

    A call that something else follows before its end went on as no JSON, and is in the content:
    it is dropped from ``calls``. One that the end of the generation cut stays, incomplete.
    """

    def __init__(self, *, short_ids: bool = False) -> None:
        self.calls: list[Call] = []
        self._by_index: dict[int, Call] = {}
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._new_id = new_short_call_id if short_ids else new_call_id

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def called(self) -> bool:
        """Whether a call is complete."""
        return any(call.complete for call in self.calls)

    def call(self, index: int) -> Call:
        """The call that events name by ``index``, also when it was dropped."""
        return self._by_index[index]

    def feed(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Content(text):
                    self._drop_open()
                    self._content.append(text)
                case Reasoning(text):
                    self._drop_open()
                    self._reasoning.append(text)
                case CallBegin(index, name):
                    self._drop_open()
                    call = self._by_index[index] = Call(self._new_id(), name)
                    self.calls.append(call)
                case CallArguments(index, text):
                    self._by_index[index].add(text)
                case CallEnd(index):
                    self._by_index[index].complete = True

    def _drop_open(self) -> None:
        if self.calls and not self.calls[-1].complete:
            self.calls.pop()


def finish_reason(finish: FinishReason, turn: Turn) -> str:
    """OpenAI's word for why the choice ended: "stop", "length" or "tool_calls"."""
    if finish.type == "length":
        return "length"
    return "tool_calls" if turn.called else "stop"


def count_reasoning(token_bytes: Sequence[bytes], ids: Sequence[int], turn: Turn) -> int:
    """How many of the generated ``ids`` it takes to write as many bytes as the reasoning has."""
    left = len(turn.reasoning.encode())
    if not left:
        return 0
    for count, i in enumerate(ids, 1):
        left -= len(token_bytes[i]) if i < len(token_bytes) else 0
        if left <= 0:
            return count
    return len(ids)
