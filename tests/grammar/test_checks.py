"""Dead and empty parts: taken out without a change of the language, refused if nothing is left."""

from __future__ import annotations

import math

import pytest
from grammar_language import grammars, words
from hypothesis import given, settings

from rtlang.errors import GrammarTooLarge, GrammarUnsatisfiable
from rtlang.grammar.checks import MAX_SIZE, prepared, size
from rtlang.grammar.ir import Alt, Chars, Dispatch, Expr, Grammar, Ref, Repeat, Seq, Text
from rtlang.grammar.ir_walk import nodes, reachable

NOTHING = Alt(())
A = Text("a")


def root(expr: Expr, **rules: Expr) -> Grammar:
    return Grammar({"root": expr, **rules})


def shortest(expr: Expr, rules: dict[str, Expr]) -> float:
    """Characters of the shortest text; infinite if there is none."""
    known = dict.fromkeys(rules, math.inf)

    def of(node: Expr) -> float:
        match node:
            case Text(text):
                return len(text)
            case Chars(ranges):
                return 1 if ranges else math.inf
            case Seq(parts):
                return sum(map(of, parts))
            case Alt(parts):
                return min(map(of, parts), default=math.inf)
            case Repeat(body, low, _):
                return low * of(body) if low else 0
            case Ref(name):
                return known[name]
        return 0

    while (new := {name: of(rule) for name, rule in rules.items()}) != known:
        known = new
    return of(expr)


@settings(max_examples=300, deadline=None)
@given(grammars("ab"))
def test_the_language_stays_and_nothing_dead_is_left(grammar: Grammar) -> None:
    expected = words(grammar, "ab", 4)
    try:
        found = prepared(grammar)
    except GrammarUnsatisfiable:
        assert shortest(Ref("root"), grammar.rules) == math.inf
        return
    assert words(found, "ab", 4) == expected
    assert prepared(found) is found
    for expr in found.rules.values():
        for node in nodes(expr):
            assert shortest(node, found.rules) < math.inf, node
            if isinstance(node, Repeat) and not _has_free_text(node.expr, found.rules):
                assert shortest(node.expr, found.rules) > 0, node


def _has_free_text(expr: Expr, rules: dict[str, Expr]) -> bool:
    within = reachable(Grammar({**rules, "here": expr}, "here"))
    return any(isinstance(n, Dispatch) for rule in within.rules.values() for n in nodes(rule))


@pytest.mark.parametrize(
    "grammar",
    [
        root(NOTHING),
        root(Chars(())),
        root(Seq((Ref("root"), A))),
        root(Ref("root")),
        root(Ref("x"), x=Ref("y"), y=Alt((Ref("x"), Ref("root")))),
        root(Seq((A, NOTHING))),
        root(Repeat(NOTHING, 2, 3)),
        root(Repeat(Ref("root"), 1, None)),
    ],
)
def test_without_any_text_it_is_refused(grammar: Grammar) -> None:
    with pytest.raises(GrammarUnsatisfiable):
        prepared(grammar)


def test_dead_rules_are_dropped_with_what_needs_them() -> None:
    grammar = root(
        Alt((A, Seq((Ref("dead"), Text("b"))), Seq((A, Repeat(Ref("dead"), 0, 5))))),
        dead=Repeat(Ref("dead"), 1, 3),
        unused=Text("c"),
    )
    assert prepared(grammar).rules == {"root": Alt((A, A))}


def test_a_trigger_with_a_dead_rule_never_occurs() -> None:
    grammar = root(Dispatch((("<", "x"), ("[", "y"))), x=NOTHING, y=A)
    assert prepared(grammar).rules == {"root": Dispatch((("[", "y"),), ("<",)), "y": A}


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (Repeat(Repeat(A, 0, 1), 2, 5), Repeat(A, 0, 5)),
        (Repeat(Repeat(A, 0, None), 0, None), Repeat(A, 0, None)),
        (Repeat(Repeat(A, 1, None), 2, 7), Repeat(A, 2, None)),
        (Repeat(Text(""), 3, None), Text("")),
        (Repeat(A, 0, 0), Text("")),
        (Repeat(A, 1, 1), A),
        (Repeat(Alt((A, Text(""))), 1, 1), Alt((A, Text("")))),
        (Seq((Text(""), A, Text(""))), A),
    ],
)
def test_simplest_forms(given_: Expr, expected: Expr) -> None:
    assert prepared(root(given_)).rules == {"root": expected}


def test_a_missing_rule_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="missing"):
        prepared(root(Ref("missing")))


def test_the_limit_of_the_size() -> None:
    char = Chars(((97, 97),))
    largest = root(Seq(tuple([char] * ((MAX_SIZE - 1) // 2))))
    assert MAX_SIZE - 1 <= size(largest) <= MAX_SIZE
    prepared(largest)
    with pytest.raises(GrammarTooLarge) as caught:
        prepared(root(Seq((*[char] * (MAX_SIZE // 2), A))))
    assert caught.value.data["limit"] == "size"


def test_a_shared_part_counts_wherever_it_is_written() -> None:
    expr: Expr = A
    for _ in range(60):
        expr = Seq((expr, expr))
    with pytest.raises(GrammarTooLarge):
        prepared(root(expr))


def test_nesting_costs_no_stack() -> None:
    expr: Expr = A
    for _ in range(5000):
        expr = Alt((Seq((Text("("), Repeat(expr, 0, 3), Text(")"))), A))
    assert size(prepared(root(expr))) > 20_000


def test_a_chain_of_optional_parts_stays_linear() -> None:
    # As the members of an object: each rule may be empty if all behind it may.
    rules: dict[str, Expr] = {
        f"p{i}": Seq((Repeat(Text(f"k{i},"), 0, 1), Ref(f"p{i + 1}"))) for i in range(2000)
    }
    grammar = Grammar({"root": Repeat(Ref("p0"), 0, 3), **rules, "p2000": Text("")})
    assert size(prepared(grammar)) < 12 * size(grammar)
