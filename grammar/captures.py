"""Which part of a text each rule of its grammar has matched: for values out of a generated text.

The first alternative that leads to a match wins, and a repetition takes as much as it can: the
parse that Python's ``re`` would find. All parses go through the text at once, one character at a
time; of those that could continue alike only the preferred one is kept. So the time is linear in
the text, as long as what may follow does not itself grow with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from typing import Any, NamedTuple

from rtlang.grammar.ir import Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text


@dataclasses.dataclass(frozen=True, slots=True)
class Parse:
    """``spans``: (rule, start, end) of the watched rules, in the order of their ends.
    ``open_ended``: a longer text that starts like this one matches, too."""

    spans: tuple[tuple[str, int, int], ...]
    open_ended: bool


class _Frame(NamedTuple):
    """What is still to be matched: ``done`` characters (of a text) or rounds (of a repetition)
    of ``node`` are behind; then ``rest``. A watched rule's end is a node of its own."""

    node: Expr | _End
    done: int
    rest: Any  # _Frame | None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _End:
    rule: str


class _Note(NamedTuple):
    """A watched rule has started (``ends``: has ended) at an index; after what ``before`` notes."""

    rule: str
    at: int
    ends: bool
    before: Any  # _Note | None


_Way = tuple[_Frame | None, _Note | None]


def parse(grammar: Grammar, text: str, watched: Container[str] = ()) -> Parse | None:
    """The preferred parse of the whole text; None: it does not match. No rule may begin with
    itself."""
    return _Machine(grammar, watched).run(text)


class _Machine:
    def __init__(self, grammar: Grammar, watched: Container[str]) -> None:
        self._grammar = grammar
        self._watched = watched
        self._ends: dict[str, _End] = {}
        # One object for equal frames, so that equal ones are found by their identity.
        self._frames: dict[tuple[int, int, int], _Frame] = {}

    def run(self, text: str) -> Parse | None:
        ways: list[_Way] = [(self._frame(Ref(self._grammar.root), 0, None), None)]
        for at, char in enumerate(text):
            ways = self._after(self._heads(ways, at), char)
            if not ways:
                return None
        heads = self._heads(ways, len(text))
        done = next((note for frame, note in heads if frame is None), _MISSING)
        if done is _MISSING:
            return None
        return Parse(_spans(done), any(frame is not None for frame, _ in heads))

    def _frame(self, node: Expr | _End, done: int, rest: _Frame | None) -> _Frame:
        key = (id(node), done, id(rest))
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = _Frame(node, done, rest)  # keeps both ids in use
        return frame

    def _heads(self, ways: list[_Way], at: int) -> list[_Way]:
        """The ways as far as they lead without a character, the preferred ones first."""
        found: list[_Way] = []
        seen: set[int] = set()
        pending = ways[::-1]
        while pending:
            frame, note = pending.pop()
            if id(frame) in seen:
                continue
            seen.add(id(frame))
            if frame is None or _wants_character(frame):
                found.append((frame, note))
            else:
                pending += reversed(self._opened(frame, note, at))
        return found

    def _opened(self, frame: _Frame, note: _Note | None, at: int) -> list[_Way]:
        node, done, rest = frame
        match node:
            case Text():
                return [(rest, note)]
            case Seq(parts):
                for part in reversed(parts):
                    rest = self._frame(part, 0, rest)
                return [(rest, note)]
            case Alt(parts):
                return [(self._frame(part, 0, rest), note) for part in parts]
            case Repeat(body, low, high):
                again = self._frame(node, min(done + 1, low) if high is None else done + 1, rest)
                found: list[_Way] = [(rest, note)] if done >= low else []
                if high is None or done < high:
                    found.insert(0, (self._frame(body, 0, again), note))
                return found
            case Ref(name):
                if name in self._watched:
                    end = self._ends.setdefault(name, _End(name))
                    rest, note = self._frame(end, 0, rest), _Note(name, at, False, note)
                return [(self._frame(self._grammar.rules[name], 0, rest), note)]
            case _End(rule):
                return [(rest, _Note(rule, at, True, note))]
        raise AssertionError(f"free text has no parse: {node}")

    def _after(self, heads: list[_Way], char: str) -> list[_Way]:
        ways: list[_Way] = []
        code = ord(char)
        for frame, note in heads:
            if frame is None:
                continue
            node, done, rest = frame
            if isinstance(node, Text):
                if node.text[done] == char:
                    ways.append((self._frame(node, done + 1, rest), note))
            else:
                assert isinstance(node, Chars)
                if any(low <= code <= high for low, high in node.ranges):
                    ways.append((rest, note))
        return ways


_MISSING: Any = object()


def _wants_character(frame: _Frame) -> bool:
    node = frame.node
    return isinstance(node, Chars) or (isinstance(node, Text) and frame.done < len(node.text))


def _spans(note: _Note | None) -> tuple[tuple[str, int, int], ...]:
    notes: list[_Note] = []
    while note is not None:
        notes.append(note)
        note = note.before
    spans: list[tuple[str, int, int]] = []
    starts: list[int] = []  # rules end in the order opposite to that of their starts
    for rule, at, ends, _ in reversed(notes):
        if ends:
            spans.append((rule, starts.pop(), at))
        else:
            starts.append(at)
    return tuple(spans)
