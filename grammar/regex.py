r"""Regular expressions: what a pattern means, as a grammar expression and as an automaton.

The dialect, the same for constraints and for JSON schema's ``pattern``:

    a  \n \r \t \f \v \0  \xHH \uHHHH \u{H..} \cX  \.      characters; \uD83D\uDE00 is one
    .                       any code point but \n, \r, U+2028, U+2029
    [a-z_] [^a] \d \w \s \D \W \S                          \d, \w: ASCII; \s: ECMA-262's
    \p{L} \P{Letter} \p{gc=Lu} \p{Any} \p{ASCII} \p{Assigned}   general categories
    xy  x|y  (x) (?:x) (?<name>x) (?P<name>x)
    x* x+ x? x{2} x{2,} x{2,5}                             lazy ones (x*?) match the same texts
    ^ \A  $ \z \Z  \b \B    start, end of the text (not of a line); at the edge of a word
    (?=x) (?!x) (?<=x) (?<!x)                              anywhere

Refused by name: backreferences, octal escapes, flags, atomic groups, possessive quantifiers,
conditionals, recursion, comments, POSIX classes, empty classes, scripts, ``{,n}`` (some read it
as text), and what looks ahead inside of a lookbehind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from rtlang.grammar.charset import CharSet
from rtlang.grammar.dfa import Dfa
from rtlang.grammar.dfa_ir import to_expr
from rtlang.grammar.ir import Alt, Expr, Ref, Text
from rtlang.grammar.ir_build import alt, repeat, seq
from rtlang.grammar.regex_dfa import to_dfa
from rtlang.grammar.regex_parser import parsed
from rtlang.grammar.regex_tree import (
    ANYTHING,
    END,
    START,
    Cat,
    Look,
    Many,
    Node,
    One,
    Or,
    cat,
    children,
    walk,
)

MAX_INLINE = 16  # expressions in expressions, before one becomes a rule


class Regex:
    """The texts that a pattern describes. See ``parse``."""

    def __init__(self, pattern: str, *, search: bool) -> None:
        self.pattern = pattern
        self.search = search
        tree = parsed(pattern)
        alternatives = tree.parts if isinstance(tree, Or) else (tree,)
        whole = tuple(_whole(part, search) for part in alternatives)
        self._tree = whole[0] if len(whole) == 1 else Or(whole)

    def __repr__(self) -> str:
        return f"Regex({self.pattern!r}, search={self.search})"

    @cached_property
    def looks_around(self) -> bool:
        """It needs an automaton: what it asks of a character depends on others."""
        return any(isinstance(node, Look) for node in walk(self._tree))

    def to_ir(self, encode: Callable[[CharSet], Expr], define: Callable[[Expr], Ref]) -> Expr:
        """An expression for exactly its texts: as it is written, with counts kept as counts, unless
        it looks around.

        encode  writes one character out of a set (such as a quote within a JSON string)
        define  makes a rule of an expression

        Raises:
            GrammarTooLarge: what looks around has too large an automaton.
        """
        if self.looks_around:
            return to_expr(self.to_dfa(), encode, define)
        return _Writer(encode, define).written(self._tree)

    def to_dfa(self) -> Dfa:
        """Its texts as an automaton.

        Raises:
            GrammarTooLarge: it has too many states.
        """
        return self._dfa

    @cached_property
    def _dfa(self) -> Dfa:
        return to_dfa(self._tree)


def parse(pattern: str, *, search: bool) -> Regex:
    """The texts that match ``pattern`` as a whole, or (``search``) that have a part which does.

    Raises:
        InvalidRegex: it is wrong, or uses what is not supported: ``pos`` (the index of the
            character) and ``reason``.
        GrammarTooLarge: it is beyond a limit (``limit`` names it).
    """
    return Regex(pattern, search=search)


def _whole(node: Node, search: bool) -> Node:
    """An alternative as a description of the whole text: its outer anchors are taken off."""
    parts = list(node.parts) if isinstance(node, Cat) else [node]
    first, last = 0, len(parts)
    while first < last and parts[first] is START:
        first += 1
    while last > first and parts[last - 1] is END:
        last -= 1
    before = [ANYTHING] if search and first == 0 else []
    after = [ANYTHING] if search and last == len(parts) else []
    return cat([*before, *parts[first:last], *after])


class _Writer:
    """Trees without lookarounds as expressions, without recursion."""

    def __init__(self, encode: Callable[[CharSet], Expr], define: Callable[[Expr], Ref]) -> None:
        self._encode = encode
        self._define = define

    def written(self, root: Node) -> Expr:
        done: dict[Node, tuple[Expr, int]] = {}  # with the height of the expression
        for node in reversed(list(walk(root))):  # children before their parents
            parts = [done[child] for child in children(node)]
            height = max((h for _, h in parts), default=0) + 1
            expr = self._one(node, [part for part, _ in parts])
            if height > MAX_INLINE:
                expr, height = self._define(expr), 0
            done[node] = expr, height
        return done[root][0]

    def _one(self, node: Node, parts: list[Expr]) -> Expr:
        match node:
            case One(chars):
                return self._encode(chars) if chars else Alt(())
            case Cat():
                return seq(_joined(parts))
            case Or():
                return alt(parts)
            case Many(_, low, high):
                return repeat(parts[0], low, high)
            case Look():
                raise AssertionError("a lookaround has no expression of its own")


def _joined(parts: list[Expr]) -> list[Expr]:
    """Neighbouring characters as one text."""
    joined: list[Expr] = []
    for part in parts:
        if isinstance(part, Text) and joined and isinstance(last := joined[-1], Text):
            joined[-1] = Text(last.text + part.text)
        else:
            joined.append(part)
    return joined
