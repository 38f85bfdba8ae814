"""Finding markers in text as it grows, and collecting what it turns out to be."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from rtlang.runtime.parsers.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Reasoning,
)

_SPACE = re.compile(r"\s*")


def space_end(text: str, at: int) -> int:
    """Where white space that begins at ``at`` ends."""
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def begins(text: str, at: int, marker: str) -> bool | None:
    """Whether ``marker`` stands at ``at``; None: it may, once there is more text."""
    there = text[at : at + len(marker)]
    return there == marker or (None if marker.startswith(there) else False)


class Scanner:
    """Finds the first of several markers, and the end of a text that may become one."""

    def __init__(self, markers: Iterable[str]) -> None:
        """Where two markers begin at one place, the longer one counts."""
        ordered = sorted(set(markers), key=len, reverse=True)
        assert all(ordered), "an empty marker"
        self._any = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
        self._first = re.compile("|".join(sorted({re.escape(m[0]) for m in ordered})) or "(?!)")
        self._prefixes = {marker[:n] for marker in ordered for n in range(1, len(marker))}
        self._longest = max(map(len, ordered), default=1)

    def find(self, text: str, at: int = 0) -> tuple[int, str] | None:
        """(start, marker) of the first marker from ``at`` on."""
        match = self._any.search(text, at)
        return None if match is None else (match.start(), match[0])

    def cut(self, text: str, at: int = 0) -> int:
        """Where the longest end of ``text`` that is a proper prefix of a marker begins; looks
        from ``at`` on, where no whole marker is. The text's length: there is no such end."""
        for match in self._first.finditer(text, max(at, len(text) - self._longest + 1)):
            if text[match.start() :] in self._prefixes:
                return match.start()
        return len(text)


@functools.lru_cache(maxsize=256)
def scanner(*markers: str) -> Scanner:
    """A scanner has no state: requests share it."""
    return Scanner(markers)


class MarkerFilter:
    """Leaves markers out of a text."""

    def __init__(self, markers: Iterable[str]) -> None:
        self._scanner = scanner(*markers)
        self._rest = ""

    def feed(self, text: str) -> str:
        text, at, kept = self._rest + text, 0, list[str]()
        while (found := self._scanner.find(text, at)) is not None:
            kept.append(text[at : found[0]])
            at = found[0] + len(found[1])
        cut = self._scanner.cut(text, at)
        kept.append(text[at:cut])
        self._rest = text[cut:]
        return "".join(kept)

    def finish(self) -> str:
        rest, self._rest = self._rest, ""
        return rest


class Events:
    """Events in order; texts of one kind that follow each other become one. Appending costs
    O(its text)."""

    def __init__(self) -> None:
        self._done: list[Event] = []
        self._parts: list[str] = []
        self._make: type[Content | Reasoning | CallArguments] = Content
        self._index = 0

    def add(self, event: Event) -> None:
        if isinstance(event, CallBegin | CallEnd):
            self._flush()
            self._done.append(event)
        elif event.text:
            index = event.index if isinstance(event, CallArguments) else 0
            if (type(event), index) != (self._make, self._index):
                self._flush()
                self._make, self._index = type(event), index
            self._parts.append(event.text)

    def taken(self) -> list[Event]:
        """The events since the last time."""
        self._flush()
        done, self._done = self._done, []
        return done

    def _flush(self) -> None:
        if not self._parts:
            return
        text = "".join(self._parts)
        self._parts.clear()
        make = self._make
        self._done.append(
            CallArguments(self._index, text) if issubclass(make, CallArguments) else make(text)
        )
