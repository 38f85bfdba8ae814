"""Automata as grammar expressions, in a form that masks are made of quickly.

A matcher makes a mask for each place of a grammar, and a place where almost any character may
follow costs it thousands of times what one costs where few may. So characters are not written
where they are read: "anything but a, b" becomes a choice of shared rules, each for a range of
characters and what follows it, as few as in a segment tree. Chains that count become counts,
unless they are entered at many places.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator

from rtlang.grammar.charset import CharSet
from rtlang.grammar.dfa import Dfa
from rtlang.grammar.dfa_cycles import components, solved
from rtlang.grammar.ir import Alt, Expr, Ref, Repeat
from rtlang.grammar.ir_build import EMPTY, alt, repeat, seq

MAX_INLINE = 16  # expressions in expressions, before one becomes a rule
MAX_SETS = 2  # sets of characters that lead to one state and are written where they are read
MAX_ENTRIES = 3  # states where a chain that counts may be entered and is written as counts
ENTRY_SHARE = 4  # of so many states one is entered, where all of them become rules instead

Encode = Callable[[CharSet], Expr]
Define = Callable[[Expr], Ref]
Classes = tuple[int, ...]  # of the automaton's table, ascending


def to_expr(dfa: Dfa, encode: Encode, define: Define) -> Expr:
    """An expression for exactly the texts of ``dfa``.

    encode  writes one character out of a set (such as a quote within a JSON string)
    define  makes a rule of an expression

    Raises:
        GrammarTooLarge: its cycles are too entangled to be written as repetitions.
    """
    return Alt(()) if dfa.is_empty else _Writer(dfa, encode, define).written()


@dataclasses.dataclass(frozen=True)
class _Run:
    """All texts from a state: ``low`` to ``high`` characters of a set; None: any number."""

    chars: Classes
    low: int
    high: int | None


class _Writer:
    def __init__(self, dfa: Dfa, encode: Encode, define: Define) -> None:
        self._table = dfa.table
        self._encode = encode
        self._define = define
        self._steps: list[dict[int, Classes]] = []  # of each state: next state -> characters
        sets: defaultdict[int, set[Classes]] = defaultdict(set)
        self._users: defaultdict[int, int] = defaultdict(int)
        for s, row in enumerate(self._table.rows):
            grouped: defaultdict[int, list[int]] = defaultdict(list)
            for c, t in row:
                grouped[t].append(c)
            self._steps.append({t: tuple(classes) for t, classes in grouped.items()})
            for t, classes in self._steps[s].items():
                if t != s:
                    sets[t].add(classes)
                    self._users[t] += 1
        self._split = {t for t, found in sets.items() if len(found) > MAX_SETS}
        self._runs: dict[int, _Run] = {}
        self._own_rule: set[int] = set()
        self._texts: dict[int, Expr] = {}
        self._heights: dict[int, int] = {}  # of the expressions of states
        self._chars: dict[Classes, Expr] = {}
        self._pieces: dict[tuple[Classes, int], Ref] = {}

    def written(self) -> Expr:
        order = list(components([sorted(row) for row in self._steps]))
        for states in order:
            if len(states) == 1 and (run := self._run(states[0])):
                self._runs[states[0]] = run
        self._own_rule = self._much_entered()
        for s in self._own_rule:
            del self._runs[s]
        for states in order:
            if len(states) > 1:
                self._write_cycle(states)
            elif states[0] not in self._runs:
                self._write(states[0])
        return self._from(0)

    def _much_entered(self) -> set[int]:
        """States of chains that count and are entered at many places: with a count for each
        place, a matcher would follow all of them side by side."""
        entered = {0, *(t for s, row in enumerate(self._steps) if s not in self._runs for t in row)}
        chains: defaultdict[tuple[int, Classes], list[int]] = defaultdict(list)
        for s, run in self._runs.items():
            if run.chars and run.high is not None:
                chains[self._end(s), run.chars].append(s)
        found: set[int] = set()
        for states in chains.values():
            highs = [self._high(s) for s in states if s in entered]
            first, last = min(highs, default=0), max(highs, default=0)
            if len(highs) > MAX_ENTRIES and last - first <= ENTRY_SHARE * len(highs):
                found |= {s for s in states if self._high(s) > first}
        return found

    def _high(self, s: int) -> int:
        high = self._runs[s].high
        assert high is not None
        return high

    def _end(self, s: int) -> int:
        """Where a run ends that is no loop."""
        while self._runs[s].chars:
            (s,) = self._steps[s]
        return s

    def _run(self, s: int) -> _Run | None:
        steps, may_end = self._steps[s], s in self._table.accepting
        if not steps:
            return _Run((), 0, 0)
        if len(steps) > 1:
            return None
        ((t, chars),) = steps.items()
        if t == s:
            return _Run(chars, 0, None)
        rest = self._runs.get(t)
        if rest is None or (rest.chars and rest.chars != chars) or (may_end and rest.low):
            return None
        high = None if rest.high is None else rest.high + 1
        return _Run(chars, 0 if may_end else rest.low + 1, high)

    def _write(self, s: int) -> None:
        steps = dict(self._steps[s])
        again = steps.pop(s, None)
        ways = [way for t, chars in steps.items() for way in self._ways(chars, t)]
        if s in self._table.accepting:
            ways.append(EMPTY)
        text = alt(ways)
        if again is not None:
            text = seq([Repeat(self._class(again), 0, None), text])
        height = 1 + max((self._heights.get(t, 0) for t in steps), default=0)
        if self._users[s] > 1 or height > MAX_INLINE or s in self._own_rule:
            text, height = self._define(text), 0
        self._texts[s], self._heights[s] = text, height

    def _write_cycle(self, states: list[int]) -> None:
        inside = set(states)
        ends: dict[int, Expr] = {}
        for s in states:
            out = [(t, chars) for t, chars in self._steps[s].items() if t not in inside]
            ways = [way for t, chars in out for way in self._ways(chars, t)]
            if s in self._table.accepting:
                ways.append(EMPTY)
            if ways:
                ends[s] = alt(ways)
        steps = {
            s: {t: self._class(chars) for t, chars in self._steps[s].items() if t in inside}
            for s in states
        }
        self._texts |= solved(steps, ends, self._define)

    def _ways(self, chars: Classes, t: int) -> Iterator[Expr]:
        """One of these characters, and then the texts of state ``t``."""
        if t not in self._split:
            yield seq([self._class(chars), self._from(t)])
            return
        for piece in _segments(set(chars), 0, len(self._table.classes)):
            if (piece, t) not in self._pieces:
                way = seq([self._class(piece), self._from(t)])
                self._pieces[piece, t] = self._define(way)
            yield self._pieces[piece, t]

    def _from(self, s: int) -> Expr:
        """All texts from a state to the end."""
        if s not in self._texts:
            run = self._runs[s]
            text = repeat(self._class(run.chars), run.low, run.high) if run.chars else EMPTY
            if self._users[s] > 1 and text != EMPTY:
                text = self._define(text)
            self._texts[s] = text
        return self._texts[s]

    def _class(self, chars: Classes) -> Expr:
        if chars not in self._chars:
            ranges = (pair for c in chars for pair in self._table.classes[c].ranges)
            self._chars[chars] = self._encode(CharSet.from_ranges(ranges))
        return self._chars[chars]


def _segments(chars: set[int], first: int, stop: int) -> Iterator[Classes]:
    """``chars`` as few nodes of the binary tree over ``first`` to ``stop``, exclusive."""
    inside = [c for c in range(first, stop) if c in chars]
    if len(inside) == stop - first:
        yield tuple(inside)
    elif inside:
        middle = (first + stop) // 2
        yield from _segments(chars, first, middle)
        yield from _segments(chars, middle, stop)
