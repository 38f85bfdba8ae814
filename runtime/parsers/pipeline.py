"""Pipeline: control tokens out, then reasoning apart, then calls out of what is left."""

from __future__ import annotations

from collections.abc import Iterable

from rtlang.runtime.parsers.events import Content, Event, OutputParser, Reasoning
from rtlang.runtime.parsers.scanning import Events, MarkerFilter


class Pipeline:
    """An ``OutputParser`` made of others; each part may be missing."""

    def __init__(
        self,
        control: MarkerFilter | None,
        reasoning: OutputParser | None,
        calls: OutputParser | None,
        *,
        lead: str,
    ) -> None:
        """``lead``: what the answer begins with. It is read, but its text is no event."""
        self._control = control
        self._reasoning = reasoning
        self._calls = calls
        self._events = Events()
        for event in self.feed(lead):
            if not isinstance(event, Content | Reasoning):
                self._events.add(event)

    def feed(self, text: str) -> list[Event]:
        self._read(text if self._control is None else self._control.feed(text))
        return self._events.taken()

    def finish(self) -> list[Event]:
        if self._control is not None:
            self._read(self._control.finish())
        if self._reasoning is not None:
            self._pass(self._reasoning.finish())
        if self._calls is not None:
            self._add(self._calls.finish())
        return self._events.taken()

    def _read(self, text: str) -> None:
        self._pass([Content(text)] if self._reasoning is None else self._reasoning.feed(text))

    def _pass(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._calls is not None and isinstance(event, Content):
                self._add(self._calls.feed(event.text))
            else:
                self._events.add(event)

    def _add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._events.add(event)
