"""What an answer consists of, as events: reasoning, content, and calls piece by piece."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Reasoning(msgspec.Struct, frozen=True):
    """More of what the model thinks before it answers."""

    text: str


class Content(msgspec.Struct, frozen=True):
    """More of the answer."""

    text: str


class CallBegin(msgspec.Struct, frozen=True):
    """A call of a listed tool. ``index``: 0 for the answer's first call, then 1, 2, ..."""

    index: int
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """More of a call's arguments: JSON text as the model wrote it.

    All fragments of a call, joined, are one JSON object when its ``CallEnd`` comes. (A control
    character that stands bare in a string, which JSON forbids, comes as its escape.)
    """

    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True):
    """A call is complete.

    A call whose end never comes was cut off by the end of the generation, or went on as no JSON
    (which then follows as ``Content``): its arguments are a part only, not to be carried out.
    """

    index: int


Event = Reasoning | Content | CallBegin | CallArguments | CallEnd


class OutputParser(Protocol):
    """Reads one answer. The events do not depend on how its text was cut into pieces, except
    for where texts of the same kind are cut."""

    def feed(self, text: str) -> list[Event]:
        """What is known to be, now that ``text`` has come. Never raises.

        Held back is only what may still become a marker, and a call up to its arguments.
        """
        ...

    def finish(self) -> list[Event]:
        """What was held back, at the end of the generation; nothing is fed afterwards."""
        ...
