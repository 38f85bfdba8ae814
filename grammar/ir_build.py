"""Putting IR expressions together in their simplest form, and taking the empty text out of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rtlang.grammar.ir import Alt, Dispatch, Expr, Grammar, Ref, Repeat, Seq, Text
from rtlang.grammar.ir_walk import derived, fold, nodes

EMPTY = Text("")


def seq(parts: Iterable[Expr]) -> Expr:
    kept = [part for part in parts if part != EMPTY]
    return kept[0] if len(kept) == 1 else Seq(tuple(kept)) if kept else EMPTY


def alt(parts: Sequence[Expr]) -> Expr:
    return parts[0] if len(parts) == 1 else Alt(tuple(parts))


def repeat(expr: Expr, low: int, high: int | None) -> Expr:
    assert low >= 0, (low, high)
    assert high is None or low <= high, (low, high)
    if high == 0 or expr == EMPTY:
        return EMPTY
    if low == high == 1:
        return expr
    if isinstance(expr, Repeat) and expr.low == 1 and expr.high is None:
        return repeat(expr.expr, low, None)  # one round of x+ holds as many x as wanted
    return Repeat(expr, low, high)


class _Two(NamedTuple):
    """An expression, and the same without the empty text (None: nothing is left)."""

    plain: Expr
    filled: Expr | None


def with_filled_repeats(grammar: Grammar) -> Grammar:
    """The same language, where what is repeated is never empty: ``(x?){2,5}`` is ``x{0,5}``.

    A matcher that counts would follow each number of empty rounds at every character. Free text
    (``Dispatch``) stays as it is. The rules that are not used any more are still there; where
    there is nothing to do it is the same object.
    """
    empty, empty_rules = derived(grammar.rules, _is_empty_by_itself)
    if not any(_repeats_one_of(empty, expr) for expr in grammar.rules.values()):
        return grammar
    names = {name: _fresh(f"{name}_filled", grammar.rules) for name in empty_rules}

    def both(node: Expr, parts: list[_Two]) -> _Two:
        if isinstance(node, Seq):
            return _sequence(parts, id(node) in empty)
        if isinstance(node, Alt):
            some = [part.filled for part in parts if part.filled is not None]
            return _Two(alt([part.plain for part in parts]), alt(some) if some else None)
        if isinstance(node, Repeat):
            return _repetition(node, parts[0], id(node.expr) in empty)
        if isinstance(node, Ref) and node.name in empty_rules:
            return _Two(node, Ref(names[node.name]))
        return _Two(node, None if node == EMPTY else node)

    rules: dict[str, Expr] = {}
    for name, expr in grammar.rules.items():
        rules[name], filled = fold(expr, both)
        if name in names:
            rules[names[name]] = Alt(()) if filled is None else filled
    return Grammar(rules, grammar.root)


def _repeats_one_of(bodies: set[int], expr: Expr) -> bool:
    return any(isinstance(node, Repeat) and id(node.expr) in bodies for node in nodes(expr))


def _is_empty_by_itself(node: Expr) -> bool:
    return (
        node == EMPTY or isinstance(node, Dispatch) or (isinstance(node, Repeat) and not node.low)
    )


def _sequence(parts: list[_Two], may_be_empty: bool) -> _Two:
    plain = seq(part.plain for part in parts)
    if not may_be_empty:
        return _Two(plain, plain)
    rest: Expr = EMPTY  # the parts behind; the same without the empty text
    filled: Expr | None = None
    for part in reversed(parts):
        ways = [] if part.filled is None else [seq([part.filled, rest])]
        ways += [] if filled is None else [filled]
        filled = alt(ways) if ways else None
        rest = seq([part.plain, rest])
    return _Two(plain, filled)


def _repetition(node: Repeat, body: _Two, may_be_empty: bool) -> _Two:
    if not may_be_empty:
        plain = repeat(body.plain, node.low, node.high)
        some = None if node.high == 0 else repeat(body.plain, max(node.low, 1), node.high)
        return _Two(plain, some)
    if body.filled is None or node.high == 0:
        return _Two(EMPTY, None)
    return _Two(repeat(body.filled, 0, node.high), repeat(body.filled, 1, node.high))


def _fresh(name: str, taken: dict[str, Expr]) -> str:
    while name in taken:
        name += "_"
    return name


def included(rules: dict[str, Expr], grammar: Grammar, prefix: str) -> Ref:
    """Add another grammar to ``rules``, its names behind a prefix; a reference to its root."""

    def renamed(node: Expr, parts: list[Expr]) -> Expr:
        match node:
            case Ref(name):
                return Ref(prefix + name)
            case Dispatch(tags, excludes):
                return Dispatch(tuple((trigger, prefix + name) for trigger, name in tags), excludes)
            case Seq():
                return Seq(tuple(parts))
            case Alt():
                return Alt(tuple(parts))
            case Repeat(_, low, high):
                return Repeat(parts[0], low, high)
        return node

    for name, expr in grammar.rules.items():
        assert prefix + name not in rules, f"two rules {prefix + name}"
        rules[prefix + name] = fold(expr, renamed)
    return Ref(prefix + grammar.root)
