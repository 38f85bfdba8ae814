"""What every grammar goes through before it is compiled: dead parts and oversize are found here.

The engine compiles a grammar without any text as readily as another, and then allows no token;
and it is exact, but slow beyond use, where what is repeated may be empty.
"""

from __future__ import annotations

from rtlang.errors import GrammarTooLarge, GrammarUnsatisfiable
from rtlang.grammar.ir import Alt, Chars, Dispatch, Expr, Grammar, Repeat, Seq, Text
from rtlang.grammar.ir_build import EMPTY, alt, repeat, seq, with_filled_repeats
from rtlang.grammar.ir_walk import derived, fold, reachable

#: Most characters, ranges and operators of a grammar. The matcher counts repetitions, so that a
#: large count costs no more than a small one.
MAX_SIZE = 300_000


class Prepared(Grammar):
    """A grammar that went through ``prepared``."""

    __slots__ = ()


def prepared(grammar: Grammar) -> Prepared:
    """The same language without dead or unreachable parts, where no repeated part can be empty.

    Doing it twice costs nothing.

    Raises:
        GrammarUnsatisfiable: no text at all is in it.
        GrammarTooLarge: it is larger than ``MAX_SIZE`` (``limit="size"``).
    """
    if isinstance(grammar, Prepared):
        return grammar
    grammar = reachable(_without_dead_parts(reachable(grammar)))
    filled = with_filled_repeats(grammar)
    if filled is not grammar:  # then what held the empty text only is dead now
        grammar = reachable(_without_dead_parts(reachable(filled)))
    found = size(grammar)
    if found > MAX_SIZE:
        message = f"the constraint has {found} elements, more than {MAX_SIZE}"
        raise GrammarTooLarge(message, limit="size")
    return Prepared(grammar.rules, grammar.root)


def size(grammar: Grammar) -> int:
    """Characters, ranges and operators of the grammar as it is written out."""
    return sum(fold(expr, _size) for expr in grammar.rules.values())


def _size(node: Expr, parts: list[int]) -> int:
    if isinstance(node, Text):
        return 1 + len(node.text)
    if isinstance(node, Chars):
        return 1 + len(node.ranges)
    if isinstance(node, Dispatch):
        return 1 + sum(len(trigger) for trigger, _ in node.tags) + sum(map(len, node.excludes))
    return 1 + sum(parts)


def _without_dead_parts(grammar: Grammar) -> Grammar:
    alive, alive_rules = derived(grammar.rules, _has_text_by_itself)
    if grammar.root not in alive_rules:
        raise GrammarUnsatisfiable("no text at all satisfies this constraint")

    def prune(node: Expr, parts: list[Expr]) -> Expr:
        if isinstance(node, Alt):
            kept = zip(node.parts, parts, strict=True)
            return alt([new for old, new in kept if id(old) in alive])
        if isinstance(node, Repeat):
            return repeat(parts[0], node.low, node.high) if id(node.expr) in alive else EMPTY
        if isinstance(node, Dispatch):
            # Nothing can follow a trigger whose rule has no text: it must not occur at all.
            tags = tuple(tag for tag in node.tags if tag[1] in alive_rules)
            dead = tuple(trigger for trigger, name in node.tags if name not in alive_rules)
            return Dispatch(tags, node.excludes + dead)
        return seq(parts) if isinstance(node, Seq) else node

    rules = {
        name: fold(grammar.rules[name], prune) for name in grammar.rules if name in alive_rules
    }
    return Grammar(rules, grammar.root)


def _has_text_by_itself(node: Expr) -> bool:
    if isinstance(node, Chars):
        return bool(node.ranges)
    return isinstance(node, Text | Dispatch) or (isinstance(node, Repeat) and node.low == 0)
