"""Reasoning between two markers, at the beginning of an answer: ``<think>...</think>``."""

from __future__ import annotations

from collections.abc import Callable

from rtlang.runtime.parsers.events import Content, Event, Reasoning
from rtlang.runtime.parsers.scanning import Events, begins, scanner, space_end

THINK = ("<think>", "</think>")
MISTRAL_THINK = ("[THINK]", "[/THINK]")


class ThinkReader:
    """An ``OutputParser`` that knows no calls. White space around the markers is no text."""

    def __init__(self, markers: tuple[str, str], *, in_reasoning: bool) -> None:
        """``in_reasoning``: the first marker is in the prompt; once more here, it goes too."""
        self._open, close = markers
        self._close = scanner(f"\n\n{close}", f"\n{close}", close)
        self._events = Events()
        self._in_reasoning = in_reasoning
        self._space: list[str] = []
        self._kind: type[Content | Reasoning] = Reasoning if in_reasoning else Content
        self._state: Callable[[str, int], int] = self._before
        self._rest = ""

    def feed(self, text: str) -> list[Event]:
        text, at = self._rest + text, 0
        while at < len(text):
            state = self._state
            end = state(text, at)
            if end == at and self._state == state:
                break
            at = end
        self._rest = text[at:]
        return self._events.taken()

    def finish(self) -> list[Event]:
        """What is cut stays what it is: reasoning that has not ended is reasoning."""
        before = "" if self._in_reasoning else "".join(self._space)
        self._say(before + self._rest)
        self._rest, self._space = "", []
        return self._events.taken()

    def _say(self, text: str) -> None:
        self._events.add(self._kind(text))

    def _before(self, text: str, at: int) -> int:
        """Before the first marker, or what stands in its place."""
        end = space_end(text, at)
        if end > at:
            self._space.append(text[at:end])
            return end
        stands = begins(text, at, self._open)
        if stands:
            self._kind, self._space = Reasoning, []
            self._state = self._opened
            return at + len(self._open)
        if stands is False and self._in_reasoning:
            self._state = self._opened
        elif stands is False:
            self._say("".join(self._space))
            self._space = []
            self._state = self._content
        return at

    def _opened(self, text: str, at: int) -> int:
        end = space_end(text, at)
        if end == at:
            self._state = self._thinking
        return end

    def _thinking(self, text: str, at: int) -> int:
        found = self._close.find(text, at)
        end = found[0] if found is not None else self._close.cut(text, at)
        self._say(text[at:end])
        if found is None:
            return end
        self._kind = Content
        self._state = self._closed
        return end + len(found[1])

    def _closed(self, text: str, at: int) -> int:
        end = space_end(text, at)
        if end == at:
            self._state = self._content
        return end

    def _content(self, text: str, at: int) -> int:
        self._say(text[at:])
        return len(text)
