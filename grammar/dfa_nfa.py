"""Automata with many moves at once, and the deterministic table of one.

Moves without a character may be guarded by what stands before or follows (lookaround). A thread
of the simulation carries the automata of its pending lookaheads along; those of lookbehinds run
once, over the whole text. So the states of the table are (lookbehind states, set of threads).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from rtlang.grammar.charset import CharSet
from rtlang.grammar.dfa_table import Table, explore, partition, too_many_states

MAX_WORK = 200_000  # threads moved by one character: about a second
MAX_NFA_STATES = 50_000

#: States of the lookbehinds' automata, -1 where the text so far fits none of theirs.
Behind: TypeAlias = tuple[int, ...]
#: The language that the whole rest of the text must be in, given the states of the lookbehinds.
Ahead: TypeAlias = Callable[[Behind], Table]
Pending: TypeAlias = frozenset[tuple[Table, int]]
Thread: TypeAlias = tuple[int, Pending]
State: TypeAlias = tuple[Behind, frozenset[Thread]]


class Nfa:
    """States are made by ``state()``; ``table`` simulates them all at once.

    before    the languages of texts that lookbehinds ask about, from the start of the text
    alphabet  sets of characters that ``Ahead`` tables tell apart, beside those of the moves
    """

    def __init__(self, before: Iterable[Table] = (), alphabet: Iterable[CharSet] = ()) -> None:
        self.before = tuple(before)
        self._sets: dict[CharSet, int] = {}
        for chars in alphabet:
            self._number(chars)
        for table in self.before:
            for chars in table.classes:
                self._number(chars)
        self._moves: list[list[tuple[int, int]]] = []  # (number of the set, target)
        self._skips: list[list[int]] = []
        self._behind: defaultdict[int, list[tuple[int, bool, int]]] = defaultdict(list)
        self._ahead: defaultdict[int, list[tuple[Ahead, int]]] = defaultdict(list)

    def state(self) -> int:
        self._moves.append([])
        self._skips.append([])
        if len(self._skips) > MAX_NFA_STATES:
            raise too_many_states()
        return len(self._moves) - 1

    def move(self, source: int, chars: CharSet, target: int) -> None:
        self._moves[source].append((self._number(chars), target))

    def skip(self, source: int, target: int) -> None:
        self._skips[source].append(target)

    def skip_behind(self, source: int, lookbehind: int, holds: bool, target: int) -> None:
        """A skip if the text so far is (not) one of ``before[lookbehind]``."""
        self._behind[source].append((lookbehind, holds, target))

    def skip_ahead(self, source: int, ahead: Ahead, target: int) -> None:
        """A skip if the rest of the text is in the language ``ahead``."""
        self._ahead[source].append((ahead, target))

    def insert(self, table: Table, source: int, target: int) -> None:
        """The texts of ``table`` between two states."""
        states = [self.state() for _ in table.rows]
        self.skip(source, states[0])
        for s, row in zip(states, table.rows, strict=True):
            for c, t in row:
                self.move(s, table.classes[c], states[t])
        for s in table.accepting:
            self.skip(states[s], target)

    def table(self, start: int, end: int, behind: Behind | None = None) -> Table:
        """The texts from ``start`` to ``end``; ``behind``: of what precedes them.

        Raises:
            GrammarTooLarge: beyond ``MAX_STATES`` states or ``MAX_WORK``.
        """
        classes, members = partition(list(self._sets))
        run = _Run(self, classes, members, end)
        if behind is None:
            behind = (0,) * len(self.before)
        first = (behind, run.closed([(start, frozenset())], behind))
        return explore(classes, first, run.step, run.accepts)

    def _number(self, chars: CharSet) -> int:
        return self._sets.setdefault(chars, len(self._sets))


class _Run:
    def __init__(
        self, nfa: Nfa, classes: list[CharSet], members: list[list[int]], end: int
    ) -> None:
        self._nfa = nfa
        self._samples = [chars.ranges[0][0] for chars in classes]
        self._moves = [[(members[i], t) for i, t in moves] for moves in nfa._moves]
        self._end = end
        self._work = 0

    def accepts(self, state: State) -> bool:
        return any(
            s == self._end and all(at in table.accepting for table, at in pending)
            for s, pending in state[1]
        )

    def step(self, state: State) -> Iterator[tuple[int, State]]:
        behind, threads = state
        reached: defaultdict[int, set[Thread]] = defaultdict(set)
        for s, pending in threads:
            for members, target in self._moves[s]:
                self._count(len(members))
                for c in members:
                    if not pending:
                        reached[c].add((target, pending))
                    elif (later := self._moved(pending, c)) is not None:
                        reached[c].add((target, later))
        for c, moved in reached.items():
            now = tuple(
                -1 if at < 0 else table.step(at, self._samples[c])
                for table, at in zip(self._nfa.before, behind, strict=True)
            )
            if closed := self.closed(moved, now):
                yield c, (now, closed)

    def closed(self, threads: Iterable[Thread], behind: Behind) -> frozenset[Thread]:
        """With what is reached without a character; only states that move or end."""
        seen = set(threads)
        stack = list(seen)
        while stack:
            s, pending = stack.pop()
            for thread in self._skipped(s, pending, behind):
                if thread not in seen:
                    self._count(1)
                    seen.add(thread)
                    stack.append(thread)
        return frozenset(t for t in seen if self._moves[t[0]] or t[0] == self._end)

    def _skipped(self, s: int, pending: Pending, behind: Behind) -> Iterator[Thread]:
        nfa = self._nfa
        for target in nfa._skips[s]:
            yield target, pending
        for lookbehind, holds, target in nfa._behind.get(s, ()):
            if (behind[lookbehind] in nfa.before[lookbehind].accepting) is holds:
                yield target, pending
        for ahead, target in nfa._ahead.get(s, ()):
            later = _pending([*pending, (ahead(behind), 0)])
            if later is not None:
                yield target, later

    def _moved(self, pending: Pending, c: int) -> Pending | None:
        self._count(len(pending))
        code = self._samples[c]
        return _pending((table, table.step(at, code)) for table, at in pending)

    def _count(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise too_many_states()


def _pending(tables: Iterable[tuple[Table, int]]) -> Pending | None:
    """What is still to be checked; None if one of them can no longer hold."""
    kept: list[tuple[Table, int]] = []
    for table, at in tables:
        if at < 0 or (at == 0 and not table.classes and not table.accepting):
            return None
        if not _always(table, at):
            kept.append((table, at))
    return frozenset(kept)


def _always(table: Table, at: int) -> bool:
    """Every text follows: in a minimal table, a state that accepts and leads only to itself."""
    return (
        at in table.accepting
        and all(t == at for _, t in table.rows[at])
        and sum(len(table.classes[c]) for c, _ in table.rows[at]) == len(CharSet.ANY)
    )
