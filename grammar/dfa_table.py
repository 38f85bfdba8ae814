"""The minimal deterministic automaton of a regular language, and what builds one.

Code points that no state tells apart are one class; a missing move leads to no text. Minimal
automata are numbered in breadth-first order, so equal languages have equal tables.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from typing import TypeVar

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.charset import CharSet

MAX_STATES = 20_000
MAX_MOVES = 200_000  # of all states together; keeps every operation near a second

S = TypeVar("S", bound=Hashable)
Row = dict[int, int]  # class -> next state


@dataclasses.dataclass(frozen=True)
class Table:
    """States are 0 (the start) to len(rows) - 1; from each of them a text can be completed.

    classes    disjoint sets of code points, ascending by their first one
    rows       of each state: (class, next state), ascending
    accepting  states in which the text may end
    """

    classes: tuple[CharSet, ...]
    rows: tuple[tuple[tuple[int, int], ...], ...]
    accepting: frozenset[int]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # tables are parts of states that are looked up often
        return hash((self.classes, self.rows, self.accepting))

    @cached_property
    def moves(self) -> list[Row]:
        return [dict(row) for row in self.rows]

    @cached_property
    def _segments(self) -> tuple[list[int], list[tuple[int, int]]]:
        """First code points of all ranges, and of each the last one and the class."""
        segments = sorted(
            (first, last, c) for c, chars in enumerate(self.classes) for first, last in chars.ranges
        )
        return [s[0] for s in segments], [s[1:] for s in segments]

    def class_of(self, code: int) -> int:
        """The class of a code point; -1 where it has none: it is in no text."""
        starts, rest = self._segments
        at = bisect_right(starts, code) - 1
        return rest[at][1] if at >= 0 and code <= rest[at][0] else -1

    def step(self, state: int, code: int) -> int:
        """The next state; -1: no text starts like this."""
        return self.moves[state].get(self.class_of(code), -1)


def too_many_states() -> GrammarTooLarge:
    message = f"the constraint needs too large an automaton (limit: {MAX_STATES} states)"
    return GrammarTooLarge(message, limit="states")


def partition(sets: Sequence[CharSet]) -> tuple[list[CharSet], list[list[int]]]:
    """The coarsest classes that each set is a union of, and of each set its classes.

    Classes are ascending by their first code point; code points in no set are in no class.
    """
    events: list[tuple[int, int]] = []
    for i, chars in enumerate(sets):
        for first, last in chars.ranges:
            events += [(first, 1 << i), (last + 1, 1 << i)]
    events.sort()
    ranges: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    inside = since = 0  # a bit for each set
    for code, bit in events:
        if code > since and inside:
            ranges[inside].append((since, code - 1))
        inside ^= bit
        since = code
    members: list[list[int]] = [[] for _ in sets]
    for c, bits in enumerate(ranges):
        while bits:
            members[(bits & -bits).bit_length() - 1].append(c)
            bits &= bits - 1
    return [CharSet.from_ranges(pairs) for pairs in ranges.values()], members


def explore(
    classes: Sequence[CharSet],
    start: S,
    step: Callable[[S], Iterable[tuple[int, S]]],
    accepts: Callable[[S], bool],
) -> Table:
    """The table of an automaton given by its moves; ``classes`` are disjoint.

    Raises:
        GrammarTooLarge: it has more than ``MAX_STATES`` states or ``MAX_MOVES`` moves.
    """
    numbers: dict[S, int] = {start: 0}
    states = [start]
    rows: list[Row] = []
    count = 0
    for state in states:  # grows while it is walked
        row: Row = {}
        for c, target in step(state):
            if target not in numbers:
                numbers[target] = len(states)
                states.append(target)
            row[c] = numbers[target]
        rows.append(row)
        count += len(row)
        if len(states) > MAX_STATES or count > MAX_MOVES:
            raise too_many_states()
    return minimal(classes, rows, {i for i, state in enumerate(states) if accepts(state)})


def minimal(classes: Sequence[CharSet], rows: Sequence[Row], accepting: set[int]) -> Table:
    """The table of the automaton with these rows, whose start is 0.

    Hopcroft, "An n log n algorithm for minimizing states in a finite automaton" (1971), with the
    state without texts left out.
    """
    alive = _alive(rows, accepting)
    if 0 not in alive:
        return Table((), ((),), frozenset())
    live_rows = [
        {c: t for c, t in row.items() if t in alive} if s in alive else {}
        for s, row in enumerate(rows)
    ]
    block_of = _blocks(live_rows, alive, accepting & alive)
    return _numbered(classes, live_rows, block_of, accepting)


def _alive(rows: Sequence[Row], accepting: set[int]) -> set[int]:
    """States from which an accepting one can be reached."""
    sources: defaultdict[int, list[int]] = defaultdict(list)
    for s, row in enumerate(rows):
        for t in set(row.values()):
            sources[t].append(s)
    alive = set(accepting)
    pending = list(accepting)
    while pending:
        for s in sources[pending.pop()]:
            if s not in alive:
                alive.add(s)
                pending.append(s)
    return alive


def _blocks(rows: Sequence[Row], alive: set[int], accepting: set[int]) -> dict[int, int]:
    """Of each state the number of its block: states of one block accept the same texts."""
    sources: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for s, row in enumerate(rows):
        for c, t in row.items():
            sources[t].append((c, s))
    blocks = [block for block in (accepting, alive - accepting) if block]
    block_of = {s: b for b, block in enumerate(blocks) for s in block}
    pending = set(range(len(blocks)))
    while pending:
        into: defaultdict[int, list[int]] = defaultdict(list)  # class -> states that lead here
        for t in blocks[pending.pop()]:
            for c, s in sources[t]:
                into[c].append(s)
        for states in into.values():
            parts: defaultdict[int, set[int]] = defaultdict(set)
            for s in states:
                parts[block_of[s]].add(s)
            for b, part in parts.items():
                if len(part) == len(blocks[b]):
                    continue
                blocks[b] = blocks[b] - part
                new = len(blocks)
                blocks.append(part)
                block_of.update(dict.fromkeys(part, new))
                pending.add(new if b in pending or len(part) <= len(blocks[b]) else b)
    return block_of


def _numbered(
    classes: Sequence[CharSet], rows: Sequence[Row], block_of: dict[int, int], accepting: set[int]
) -> Table:
    """One state for each block that can be reached, in breadth-first order."""
    sample: dict[int, Row] = {}  # of each block, the moves to blocks
    for s, b in block_of.items():
        if b not in sample:
            sample[b] = {c: block_of[t] for c, t in rows[s].items()}
    new_classes, new_class = _merged_classes(classes, sample)
    order = [block_of[0]]
    numbers = {order[0]: 0}
    numbered: list[tuple[tuple[int, int], ...]] = []
    for b in order:  # grows while it is walked
        row = {new_class[c]: t for c, t in sample[b].items()}
        for _, t in sorted(row.items()):
            if t not in numbers:
                numbers[t] = len(order)
                order.append(t)
        numbered.append(tuple((c, numbers[t]) for c, t in sorted(row.items())))
    ends = frozenset(numbers[block_of[s]] for s in accepting if block_of.get(s) in numbers)
    return Table(new_classes, tuple(numbered), ends)


def _merged_classes(
    classes: Sequence[CharSet], sample: dict[int, Row]
) -> tuple[tuple[CharSet, ...], dict[int, int]]:
    """Classes whose moves are the same everywhere made one; the new number of each used one."""
    columns: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for b, row in sample.items():
        for c, t in row.items():
            columns[c].append((b, t))
    alike: defaultdict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    for c, column in columns.items():
        alike[tuple(column)].append(c)
    merged = sorted(
        (CharSet.from_ranges(r for c in group for r in classes[c].ranges).ranges, group)
        for group in alike.values()
    )
    return (
        tuple(CharSet(ranges) for ranges, _ in merged),
        {c: new for new, (_, group) in enumerate(merged) for c in group},
    )
