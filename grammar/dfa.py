"""Regular languages with all their operations, for what a context-free grammar has no word for:
intersection, complement, "any name but these"."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from rtlang.grammar.charset import CharSet
from rtlang.grammar.dfa_nfa import Nfa
from rtlang.grammar.dfa_table import (
    MAX_STATES,
    Row,
    Table,
    explore,
    minimal,
    partition,
    too_many_states,
)

_NICE = (CharSet.of("a"), CharSet.of("0"), CharSet.of("!~"), CharSet.of((0x20, 0xD7FF)))


@dataclasses.dataclass(frozen=True)
class Dfa:
    """A set of texts; equal sets are equal. Every operation raises ``GrammarTooLarge`` whose
    result, or whose way to it, has too many states."""

    table: Table

    @classmethod
    def nothing(cls) -> Dfa:
        return cls(minimal((), [{}], set()))

    @classmethod
    def empty_text(cls) -> Dfa:
        return cls(minimal((), [{}], {0}))

    @classmethod
    def everything(cls) -> Dfa:
        return cls(minimal([CharSet.ANY], [{0: 0}], {0}))

    @classmethod
    def chars(cls, chars: CharSet) -> Dfa:
        """The texts of one character of the set."""
        return cls(minimal([chars], [{0: 1}, {}], {1})) if chars else cls.nothing()

    @classmethod
    def text(cls, text: str) -> Dfa:
        return cls.words([text])

    @classmethod
    def words(cls, words: Iterable[str]) -> Dfa:
        """Exactly these texts."""
        classes: dict[str, int] = {}
        rows: list[Row] = [{}]
        ends: set[int] = set()
        for word in words:
            at = 0
            for char in word:
                c = classes.setdefault(char, len(classes))
                if c not in rows[at]:
                    rows[at][c] = len(rows)
                    rows.append({})
                at = rows[at][c]
            ends.add(at)
            if len(rows) > MAX_STATES:
                raise too_many_states()
        return cls(minimal([CharSet.of(char) for char in classes], rows, ends))

    @classmethod
    def length(cls, low: int, high: int | None) -> Dfa:
        """All texts of ``low`` to ``high`` (None: any number of) code points."""
        last = low if high is None else high
        if last >= MAX_STATES:
            raise too_many_states()
        rows: list[Row] = [{0: i + 1} for i in range(last)]
        rows.append({0: last} if high is None else {})
        return cls(minimal([CharSet.ANY], rows, set(range(low, last + 1))))

    def __and__(self, other: Dfa) -> Dfa:
        return _product(self.table, other.table, lambda a, b: a and b)

    def __or__(self, other: Dfa) -> Dfa:
        return _product(self.table, other.table, lambda a, b: a or b)

    def __sub__(self, other: Dfa) -> Dfa:
        return _product(self.table, other.table, lambda a, b: a and not b)

    def __invert__(self) -> Dfa:
        return Dfa.everything() - self

    def __add__(self, other: Dfa) -> Dfa:
        nfa = Nfa()
        start, middle, end = nfa.state(), nfa.state(), nfa.state()
        nfa.insert(self.table, start, middle)
        nfa.insert(other.table, middle, end)
        return Dfa(nfa.table(start, end))

    def repeat(self, low: int, high: int | None) -> Dfa:
        """``low`` to ``high`` (None: any number of) texts of the set, one after the other."""
        copies = low + 1 if high is None else high
        if copies * self.num_states > MAX_STATES:
            raise too_many_states()
        nfa = Nfa()
        start, end = nfa.state(), nfa.state()
        at = start
        for i in range(copies):
            if i >= low:
                nfa.skip(at, end)
            after = nfa.state()
            nfa.insert(self.table, at, after)
            if high is None and i == low:
                nfa.skip(after, at)
            at = after
        nfa.skip(at, end)
        return Dfa(nfa.table(start, end))

    def with_length(self, low: int, high: int | None) -> Dfa:
        """Its texts of ``low`` to ``high`` (None: any number of) code points."""
        return self & Dfa.length(low, high)

    def accepts(self, text: str) -> bool:
        at = 0
        for char in text:
            at = self.table.step(at, ord(char))
            if at < 0:
                return False
        return at in self.table.accepting

    def equals(self, other: Dfa) -> bool:
        return self == other

    def includes(self, other: Dfa) -> bool:
        """Every text of ``other`` is one of this set."""
        return (other - self).is_empty

    @property
    def num_states(self) -> int:
        """Without the one from which no text can be completed; at least 1."""
        return len(self.table.rows)

    @property
    def is_empty(self) -> bool:
        return not self.table.accepting

    @property
    def is_everything(self) -> bool:
        return self == Dfa.everything()

    @property
    def is_finite(self) -> bool:
        return len(self._last_first()) == self.num_states

    def shortest(self) -> str | None:
        """One of the shortest texts, of letters where possible; None if there is no text."""
        words = {0: ""}
        for at in (order := [0]):  # grows while it is walked
            if at in self.table.accepting:
                return words[at]
            for c, t in self.table.rows[at]:
                if t not in words:
                    words[t] = words[at] + _sample(self.table.classes[c])
                    order.append(t)
        return None

    def some_words(self, limit: int) -> list[str] | None:
        """All its texts, sorted, if there are at most ``limit``; else None."""
        order = self._last_first()
        if len(order) < self.num_states:
            return None
        counts: dict[int, int] = {}
        for s in order:
            counts[s] = int(s in self.table.accepting)
            counts[s] += sum(len(self.table.classes[c]) * counts[t] for c, t in self.table.rows[s])
        if counts[0] > limit:
            return None
        words: list[str] = []
        pending = [(0, "")]
        while pending:
            at, word = pending.pop()
            if at in self.table.accepting:
                words.append(word)
            for c, t in self.table.rows[at]:
                pending += [(t, word + char) for char in _chars(self.table.classes[c])]
        return sorted(words)

    def _last_first(self) -> list[int]:
        """States, each after all those that follow it; those that lead to a cycle are left out."""
        left = [len({t for _, t in row}) for row in self.table.rows]
        sources: list[list[int]] = [[] for _ in left]
        for s, row in enumerate(self.table.rows):
            for t in {t for _, t in row}:
                sources[t].append(s)
        order = [s for s, n in enumerate(left) if n == 0]
        for t in order:  # grows while it is walked
            for s in sources[t]:
                left[s] -= 1
                if left[s] == 0:
                    order.append(s)
        return order


def _product(a: Table, b: Table, keep: Callable[[bool, bool], bool]) -> Dfa:
    """The texts that ``keep`` wants, given whether ``a`` and ``b`` have them."""
    classes, members = partition(a.classes + b.classes)
    moves_a = _refined(a, members[: len(a.classes)])
    moves_b = _refined(b, members[len(a.classes) :])
    only_a, only_b = keep(True, False), keep(False, True)

    def step(state: tuple[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
        row_a = moves_a[state[0]] if state[0] >= 0 else {}
        row_b = moves_b[state[1]] if state[1] >= 0 else {}
        for c, t in row_a.items():
            if only_a or c in row_b:
                yield c, (t, row_b.get(c, -1))
        if only_b:
            for c, t in row_b.items():
                if c not in row_a:
                    yield c, (-1, t)

    def accepts(state: tuple[int, int]) -> bool:
        return keep(state[0] in a.accepting, state[1] in b.accepting)

    return Dfa(explore(classes, (0, 0), step, accepts))


def _refined(table: Table, members: list[list[int]]) -> list[Row]:
    return [{new: t for c, t in row for new in members[c]} for row in table.rows]


def _sample(chars: CharSet) -> str:
    nice = next((both for wish in _NICE if (both := chars & wish)), chars)
    return chr(nice.ranges[0][0])


def _chars(chars: CharSet) -> Iterator[str]:
    return (chr(code) for first, last in chars.ranges for code in range(first, last + 1))
