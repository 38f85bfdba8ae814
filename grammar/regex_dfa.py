"""The automaton of a syntax tree, lookarounds included."""

from __future__ import annotations

from rtlang.grammar.charset import CharSet
from rtlang.grammar.dfa import Dfa
from rtlang.grammar.dfa_nfa import Behind, Nfa
from rtlang.grammar.dfa_table import Table
from rtlang.grammar.regex_tree import ANYTHING, Cat, Look, Many, Node, One, Or, cat, walk


def to_dfa(node: Node) -> Dfa:
    """All texts that ``node`` matches from the first to the last character.

    Raises:
        GrammarTooLarge: the automaton, or the way to it, has too many states.
    """
    return Dfa(_Translation(node).table(node, None))


class _Translation:
    def __init__(self, node: Node) -> None:
        self._before: list[Table] = []
        self._number: dict[Look, int] = {}  # of each lookbehind
        self._alphabet: list[CharSet] = []
        for part in walk(node):
            if isinstance(part, One):
                self._alphabet.append(part.chars)
            elif isinstance(part, Look):
                self._alphabet.append(CharSet.ANY)  # of what follows or precedes
                if part.behind:
                    self._number[part] = len(self._before)
                    self._before.append(to_dfa(cat((ANYTHING, part.node))).table)
        self._ahead: dict[tuple[Look, Behind], Table] = {}

    def table(self, node: Node, behind: Behind | None) -> Table:
        """The texts of ``node`` where the lookbehinds are in these states (None: at the start)."""
        nfa = Nfa(self._before, self._alphabet)
        start, end = nfa.state(), nfa.state()
        pending: list[tuple[Node, int, int]] = [(node, start, end)]
        while pending:
            node, a, b = pending.pop()
            match node:
                case One(chars):
                    nfa.move(a, chars, b)
                case Cat(parts):
                    for part in parts:
                        after = nfa.state()
                        pending.append((part, a, after))
                        a = after
                    nfa.skip(a, b)
                case Or(parts):
                    pending += [(part, a, b) for part in parts]
                case Many():
                    pending += _copies(nfa, node, a, b)
                case Look():
                    self._look(nfa, node, a, b)
        return nfa.table(start, end, behind)

    def _look(self, nfa: Nfa, look: Look, a: int, b: int) -> None:
        if look.behind:
            nfa.skip_behind(a, self._number[look], look.holds, b)
        else:
            nfa.skip_ahead(a, lambda behind: self._rest(look, behind), b)

    def _rest(self, look: Look, behind: Behind) -> Table:
        """The texts that may follow a lookahead."""
        key = look, behind
        if key not in self._ahead:
            rest = Dfa(self.table(cat((look.node, ANYTHING)), behind))
            self._ahead[key] = (rest if look.holds else ~rest).table
        return self._ahead[key]


def _copies(nfa: Nfa, many: Many, a: int, b: int) -> list[tuple[Node, int, int]]:
    """A repetition written out between two states."""
    copies: list[tuple[Node, int, int]] = []
    for i in range(many.low if many.high is None else many.high):
        if i >= many.low:
            nfa.skip(a, b)
        after = nfa.state()
        copies.append((many.node, a, after))
        a = after
    if many.high is None:
        loop = nfa.state()
        nfa.skip(a, loop)
        copies.append((many.node, loop, loop))
        a = loop
    nfa.skip(a, b)
    return copies
